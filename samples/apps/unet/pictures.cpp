#include "lockstep/samples/apps/unet/pictures.h"

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/round_up.h"

namespace unet {

namespace ls = lockstep;

ClassMap classes_of(const ls::Tensor& logits, double threshold) {
    ClassMap map{logits.size(2), logits.size(3), {}};
    map.classes.reserve(static_cast<std::size_t>(map.height * map.width));
    if (logits.size(1) == 1)
        for (const float probability : ls::sigmoid(logits).to_vector<float>())
            map.classes.push_back(static_cast<double>(probability) > threshold ? 1 : 0);
    else
        for (const std::int64_t number : ls::argmax(logits, 1).to_vector<std::int64_t>())
            map.classes.push_back(static_cast<std::uint8_t>(number));
    return map;
}

std::array<std::uint8_t, 3> colour_of(std::size_t class_number, std::size_t classes) {
    if (classes == 2 && class_number == 1) return {255, 255, 255};
    // The bits of the number, lowest first, are the highest of red, green and blue, then the next ones.
    std::array<std::uint8_t, 3> colour{};
    for (std::size_t bit = 0; bit < 8; ++bit)
        if (class_number >> bit & 1) colour[bit % 3] |= static_cast<std::uint8_t>(128 >> bit / 3);
    return colour;
}

ls::HostImage mask_image(const ClassMap& map, const std::vector<ls::MaskValue>& mask_values,
                         const std::map<std::uint8_t, std::array<std::uint8_t, 3>>& palette) {
    constexpr std::array<ls::ImageMode, 5> modes{ls::ImageMode::palette, ls::ImageMode::palette,
                                                 ls::ImageMode::grey_alpha, ls::ImageMode::rgb, ls::ImageMode::rgba};
    ls::HostImage image{map.height, map.width, modes[mask_values.at(0).size()], {}, {}};
    image.pixels.reserve(map.classes.size() * mask_values[0].size());
    for (const std::uint8_t number : map.classes) {
        const ls::MaskValue& value = mask_values.at(number);
        image.pixels.insert(image.pixels.end(), value.begin(), value.end());
    }
    if (image.mode != ls::ImageMode::palette) return image;
    for (const ls::MaskValue& value : mask_values)
        image.palette.resize(std::max<std::size_t>(image.palette.size(), value[0] + std::size_t{1}));
    const bool complete = std::all_of(mask_values.begin(), mask_values.end(),
                                      [&](const ls::MaskValue& value) { return palette.contains(value[0]); });
    for (std::size_t number = 0; number < mask_values.size(); ++number) {
        const std::uint8_t index = mask_values[number][0];
        image.palette[index] = complete ? palette.at(index) : colour_of(number, mask_values.size());
    }
    return image;
}

ls::HostImage overlay(const ls::HostImage& image, const ClassMap& map) {
    ls::HostImage picture = ls::as_rgb(image);
    for (std::size_t i = 0; i < map.classes.size(); ++i) {
        if (map.classes[i] == 0) continue;
        const auto colour = colour_of(map.classes[i], 256);
        for (std::size_t c = 0; c < 3; ++c) {
            std::uint8_t& level = picture.pixels[3 * i + c];
            level = static_cast<std::uint8_t>((level + std::min(2 * colour[c], 255)) / 2);
        }
    }
    return picture;
}

ls::HostImage sheet(const std::vector<ls::HostImage>& pictures, std::size_t columns) {
    constexpr std::size_t line = 4;
    const auto height = static_cast<std::size_t>(pictures.at(0).height),
               width = static_cast<std::size_t>(pictures[0].width), rows = ls::ceil_div(pictures.size(), columns),
               whole_width = columns * (width + line) - line, whole_height = rows * (height + line) - line;
    ls::HostImage all{static_cast<std::int64_t>(whole_height),
                      static_cast<std::int64_t>(whole_width),
                      ls::ImageMode::rgb,
                      std::vector<std::uint8_t>(whole_height * whole_width * 3, 255),
                      {}};
    for (std::size_t i = 0; i < pictures.size(); ++i) {
        const ls::HostImage picture = ls::as_rgb(pictures[i]);
        for (std::size_t y = 0; y < height; ++y)
            std::copy_n(
                &picture.pixels[3 * y * width], 3 * width,
                &all.pixels[3 * ((i / columns * (height + line) + y) * whole_width + i % columns * (width + line))]);
    }
    return all;
}

}  // namespace unet
