#include "lockstep/parallel/data/image_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep {

ScaledSize scaled_size(std::int64_t height, std::int64_t width, double scale) {
    if (!(scale > 0 && scale <= 1))
        throw InvalidArgument(fmt::format("scale of images is {}; expected a number above 0 and at most 1", scale));
    const auto scaled = [&](std::int64_t side) { return static_cast<std::int64_t>(scale * static_cast<double>(side)); };
    const ScaledSize size{scaled(height), scaled(width)};
    if (size.height < 1 || size.width < 1)
        throw InvalidArgument(
            fmt::format("scale {} of images of {} x {} (width x height) leaves {} x {} pixels; expected at least one",
                        scale, width, height, size.width, size.height));
    return size;
}

HostImage scale_image(const HostImage& image, double scale, Resampling resampling) {
    const auto [height, width] = scaled_size(image.height, image.width, scale);
    return resize_image(image, height, width, resampling);
}

void write_channels(const HostImage& image, std::span<float> to) {
    detail::require_pixels("write_channels", image);
    if (to.size() != image.pixels.size())
        throw InvalidArgument(
            fmt::format("write_channels: the output has {} elements and the image {} levels; expected the same number",
                        to.size(), image.pixels.size()));
    const bool as_they_are =
        std::all_of(image.pixels.begin(), image.pixels.end(), [](std::uint8_t level) { return level <= 1; });
    std::array<float, 256> value{};
    for (std::size_t level = 0; level < value.size(); ++level)
        value[level] = as_they_are ? static_cast<float>(level) : static_cast<float>(static_cast<double>(level) / 255);
    const auto channels = static_cast<std::size_t>(image.channels());
    const std::size_t size = image.pixels.size() / channels;
    for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t p = 0; p < size; ++p) to[c * size + p] = value[image.pixels[p * channels + c]];
}

Tensor image_tensor(const HostImage& image) {
    if (image.mode == ImageMode::palette) return image_tensor(as_rgb(image));
    std::vector<float> values(image.pixels.size());
    write_channels(image, values);
    return Tensor::from(values, {image.channels(), image.height, image.width});
}

}  // namespace lockstep
