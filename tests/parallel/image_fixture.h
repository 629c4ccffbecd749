// Images for tests: recorded ones, and some that are computed.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/parallel/data/image.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/parallel/recorded_images.h"

namespace lockstep::test {

inline std::string bytes_of_hex(std::string_view digits) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
    return bytes;
}

/// The bytes of a recorded file.
inline std::string recorded_file(std::string_view name) {
    for (const RecordedImage& recorded : recorded_images)
        if (recorded.name == name && recorded.file != nullptr) return bytes_of_hex(recorded.file);
    FAIL("nothing was recorded as " << name);
    return {};
}

/// Smooth enough for JPEG, different everywhere. A palette has 200 colours.
inline HostImage computed_image(ImageMode mode, std::int64_t height, std::int64_t width, int seed = 0) {
    HostImage image{height, width, mode, {}, {}};
    const int levels = mode == ImageMode::palette ? 200 : 256;
    for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x)
            for (int c = 0; c < image.channels(); ++c) {
                const double wave =
                    std::sin(0.2 * static_cast<double>(x) + seed + c) * std::cos(0.3 * static_cast<double>(y) - c);
                image.pixels.push_back(static_cast<std::uint8_t>((wave + 1) * 0.5 * (levels - 1)));
            }
    for (int i = 0; mode == ImageMode::palette && i < levels; ++i) {
        const auto level = static_cast<std::uint8_t>(i);
        image.palette.push_back({level, static_cast<std::uint8_t>(255 - i), static_cast<std::uint8_t>(7 * i)});
    }
    return image;
}

/// What `call` throws as `Expected`.
template <class Expected, class Call>
std::string refusal_of(Call call) {
    try {
        call();
    } catch (const Expected& error) {
        const std::string message = error.what();
        CHECK(message.find('\n') == std::string::npos);
        return message;
    }
    FAIL("nothing was thrown");
    return {};
}

}  // namespace lockstep::test
