// Scaling of 8-bit pixels, channel by channel, in the arithmetic of Pillow's Resample.c and Geometry.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::internal {

struct PixelGrid {
    std::size_t height = 0, width = 0;
};

enum class ResamplingFilter : std::uint8_t { bilinear, bicubic };

/// `pixels` (from.height, from.width, channels) -> (to.height, to.width, channels), first along rows, then along
/// columns, each rounded to 8 bits. `channels` is 1 to 4; no size is 0.
std::vector<std::uint8_t> resample(std::span<const std::uint8_t> pixels, PixelGrid from, PixelGrid to, int channels,
                                   ResamplingFilter filter);

/// As `resample`, by selecting the nearest pixels.
std::vector<std::uint8_t> pick_nearest(std::span<const std::uint8_t> pixels, PixelGrid from, PixelGrid to,
                                       std::size_t channels);

}  // namespace lockstep::internal
