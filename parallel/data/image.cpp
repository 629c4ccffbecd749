#include "lockstep/parallel/data/image.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/parallel/data/images/resampling.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

void detail::require_pixels(std::string_view call, const HostImage& image) {
    if (image.height < 1 || image.width < 1)
        throw InvalidArgument(fmt::format("{}: the image is {} x {} (width x height); expected at least one pixel",
                                          call, image.width, image.height));
    const std::array<std::int64_t, 3> shape{image.height, image.width, image.channels()};
    if (internal::shape_bytes(shape, 1) != image.pixels.size())
        throw InvalidArgument(
            fmt::format("{}: the image has {} bytes of pixels, which does not match {} x {} (width x height) of {}",
                        call, image.pixels.size(), image.width, image.height, name_of(image.mode)));
}

namespace {

/// Product of two levels of 0 to 255, where 255 is one, rounded.
std::uint8_t level_product(unsigned a, unsigned b) {
    const unsigned product = a * b + 128;
    return static_cast<std::uint8_t>((product / 256 + product) / 256);
}

/// Calls f(colour, alpha) for all levels of colour.
template <class F>
void for_each_colour(HostImage& image, F f) {
    const auto channels = static_cast<std::size_t>(image.channels());
    for (std::size_t p = 0; p < image.pixels.size(); p += channels)
        for (std::size_t c = 0; c + 1 < channels; ++c) f(image.pixels[p + c], image.pixels[p + channels - 1]);
}

void multiply_by_alpha(HostImage& image) {
    for_each_colour(image, [](std::uint8_t& colour, std::uint8_t alpha) { colour = level_product(colour, alpha); });
}

void divide_by_alpha(HostImage& image) {
    for_each_colour(image, [](std::uint8_t& colour, std::uint8_t alpha) {
        if (alpha != 0) colour = static_cast<std::uint8_t>(std::min(255 * colour / alpha, 255));
    });
}

}  // namespace

std::string_view name_of(ImageMode mode) {
    switch (mode) {
        case ImageMode::grey: return "grey";
        case ImageMode::grey_alpha: return "grey with alpha";
        case ImageMode::rgb: return "RGB";
        case ImageMode::rgba: return "RGBA";
        case ImageMode::palette: break;
    }
    return "palette";
}

int channels_of(ImageMode mode) {
    switch (mode) {
        case ImageMode::grey_alpha: return 2;
        case ImageMode::rgb: return 3;
        case ImageMode::rgba: return 4;
        case ImageMode::grey:
        case ImageMode::palette: break;
    }
    return 1;
}

HostImage as_rgb(const HostImage& image) {
    detail::require_pixels("as_rgb", image);
    if (image.mode == ImageMode::rgb) return image;
    HostImage rgb{image.height, image.width, ImageMode::rgb, {}, {}};
    const auto channels = static_cast<std::size_t>(image.channels());
    rgb.pixels.reserve(image.pixels.size() / channels * 3);
    for (std::size_t p = 0; p < image.pixels.size(); p += channels) {
        std::array<std::uint8_t, 3> colour{};
        if (image.mode == ImageMode::rgba)
            colour = {image.pixels[p], image.pixels[p + 1], image.pixels[p + 2]};
        else if (image.mode != ImageMode::palette)
            colour.fill(image.pixels[p]);
        else if (image.pixels[p] < image.palette.size())
            colour = image.palette[image.pixels[p]];
        rgb.pixels.insert(rgb.pixels.end(), colour.begin(), colour.end());
    }
    return rgb;
}

HostImage resize_image(const HostImage& image, std::int64_t height, std::int64_t width, Resampling resampling) {
    detail::require_pixels("resize_image", image);
    if (height < 1 || width < 1)
        throw InvalidArgument(
            fmt::format("resize_image: {} x {} (width x height); expected at least 1 x 1", width, height));
    if (height == image.height && width == image.width) return image;
    const internal::PixelGrid from{static_cast<std::size_t>(image.height), static_cast<std::size_t>(image.width)};
    const internal::PixelGrid to{static_cast<std::size_t>(height), static_cast<std::size_t>(width)};
    HostImage scaled{height, width, image.mode, {}, image.palette};
    if (resampling == Resampling::nearest || image.mode == ImageMode::palette) {
        scaled.pixels = internal::pick_nearest(image.pixels, from, to, static_cast<std::size_t>(image.channels()));
        return scaled;
    }
    const auto filter =
        resampling == Resampling::bicubic ? internal::ResamplingFilter::bicubic : internal::ResamplingFilter::bilinear;
    if (image.mode != ImageMode::grey_alpha && image.mode != ImageMode::rgba) {
        scaled.pixels = internal::resample(image.pixels, from, to, image.channels(), filter);
        return scaled;
    }
    HostImage weighted = image;
    multiply_by_alpha(weighted);
    scaled.pixels = internal::resample(weighted.pixels, from, to, image.channels(), filter);
    divide_by_alpha(scaled);
    return scaled;
}

}  // namespace lockstep
