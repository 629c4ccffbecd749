// Pictures of a log: what they are made of, and as PNG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal {

/// Row-major, channels last.
struct Picture {
    std::int64_t height = 0, width = 0;
    int channels = 0;  ///< 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA
    std::vector<std::uint8_t> pixels;
};

/// `classes` from 0 to 255, or negative: an RGB picture in the colours of PASCAL VOC, with white for negative ones.
Picture coloured(std::int64_t height, std::int64_t width, const std::vector<std::int64_t>& classes);

/// The bytes of a PNG file. Throws Error where libpng says no.
std::string png_of(const Picture& picture);

}  // namespace lockstep::internal
