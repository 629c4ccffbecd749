#include "lockstep/parallel/events/picture.h"

#include <fmt/format.h>
#include <png.h>

#include <array>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

namespace {

/// The bits of the class, lowest first, become the highest bits of red, green, blue, red, green, blue, and so on.
std::array<std::uint8_t, 3> colour_of(std::int64_t class_index) {
    if (class_index < 0) return {255, 255, 255};
    std::array<std::uint8_t, 3> colour{};
    for (int bit = 0; bit < 8; ++bit)
        if (class_index >> bit & 1)
            colour[static_cast<std::size_t>(bit % 3)] |= static_cast<std::uint8_t>(128 >> bit / 3);
    return colour;
}

png_uint_32 format_of(int channels) {
    constexpr std::array<png_uint_32, 5> formats{0, PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
    return formats[static_cast<std::size_t>(channels)];
}

}  // namespace

Picture coloured(std::int64_t height, std::int64_t width, const std::vector<std::int64_t>& classes) {
    Picture picture{height, width, 3, {}};
    picture.pixels.reserve(classes.size() * 3);
    for (const std::int64_t index : classes) {
        const auto colour = colour_of(index);
        picture.pixels.insert(picture.pixels.end(), colour.begin(), colour.end());
    }
    return picture;
}

std::string png_of(const Picture& picture) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(picture.width);
    image.height = static_cast<png_uint_32>(picture.height);
    image.format = format_of(picture.channels);
    const auto require = [&](int good) {
        if (good == 0)
            throw Error(fmt::format("a picture of {} x {} pixels cannot be written as PNG: {}", picture.width,
                                    picture.height, image.message));
    };
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    std::string bytes(size, '\0');
    require(png_image_write_to_memory(&image, bytes.data(), &size, 0, picture.pixels.data(), 0, nullptr));
    bytes.resize(size);
    return bytes;
}

}  // namespace lockstep::internal
