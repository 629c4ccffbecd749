// Images for tests: recorded ones, and some that are computed.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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

inline std::string four_bytes(std::uint32_t number) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 255);
    return bytes;
}

/// CRC-32 of the PNG specification, annex D.
inline std::uint32_t png_checksum(std::string_view bytes) {
    std::uint32_t sum = 0xffffffff;
    for (const char byte : bytes) {
        sum ^= static_cast<std::uint8_t>(byte);
        for (int bit = 0; bit < 8; ++bit) sum = (sum & 1) != 0 ? 0xedb88320U ^ (sum >> 1) : sum >> 1;
    }
    return ~sum;
}

inline std::string png_chunk(const std::string& type, const std::string& data) {
    return four_bytes(static_cast<std::uint32_t>(data.size())) + type + data + four_bytes(png_checksum(type + data));
}

/// A PNG of `rows`, packed as the format wants them, without compression. `chunks` go before the pixels.
inline std::string made_png(std::uint32_t width, int bits, int colour_type, const std::vector<std::string>& rows,
                            const std::string& chunks = "") {
    std::string raw;
    for (const std::string& row : rows) raw += std::string(1, '\0') + row;
    std::uint32_t a = 1, b = 0;
    for (const char byte : raw) {
        a = (a + static_cast<std::uint8_t>(byte)) % 65521;
        b = (b + a) % 65521;
    }
    const auto length = static_cast<std::uint16_t>(raw.size());
    REQUIRE(length == raw.size());
    const auto low_first = [](std::uint16_t n) {
        return std::string{static_cast<char>(n & 255), static_cast<char>(n >> 8)};
    };
    const std::string data = "\x78\x01\x01" + low_first(length) + low_first(static_cast<std::uint16_t>(~length)) + raw +
                             four_bytes(b << 16 | a);
    const std::string header = four_bytes(width) + four_bytes(static_cast<std::uint32_t>(rows.size())) +
                               std::string{static_cast<char>(bits), static_cast<char>(colour_type), 0, 0, 0};
    return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + chunks + png_chunk("IDAT", data) + png_chunk("IEND", "");
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
