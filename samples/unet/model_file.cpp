#include "lockstep/samples/unet/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/parallel/data/pth.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"

namespace unet {

namespace ls = lockstep;

namespace {

using Shapes = std::map<std::string, ls::Shape>;

bool is_archive(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return file.get() == 'P' && file.get() == 'K';
}

template <class File>
Shapes shapes_of(const File& file) {
    Shapes shapes;
    for (const auto& entry : file.entries()) {
        std::string name = entry.name;
        for (const std::string_view prefix : {"module.", "_orig_mod."})
            if (name.starts_with(prefix)) name.erase(0, prefix.size());
        shapes.emplace(std::move(name), entry.shape);
    }
    return shapes;
}

/// Of a weight of a convolution.
ls::Shape shape_of(const Shapes& shapes, const std::string& name, const std::filesystem::path& path) {
    const auto found = shapes.find(name);
    if (found == shapes.end() || found->second.dims() != 4)
        throw ls::DataError(
            fmt::format("{}: there are no weights of a U-Net in it: {} is missing; give a file that "
                        "unet train or the PyTorch program has saved",
                        path.string(), name));
    return found->second;
}

Options network(const Shapes& shapes, const std::filesystem::path& path) {
    const ls::Shape first = shape_of(shapes, "inc.double_conv.0.weight", path),
                    last = shape_of(shapes, "outc.conv.weight", path);
    const Options net{.channels = first[1],
                      .classes = last[0],
                      .bilinear = shapes.find("up1.up.weight") == shapes.end(),
                      .width = first[0]};
    // Memory is taken for what the file has, not for what its first layer promises.
    const std::string lowest = "down4.maxpool_conv.1.double_conv.0.weight";
    const ls::Shape expected{16 * net.width / (net.bilinear ? 2 : 1), 8 * net.width, 3, 3};
    if (shape_of(shapes, lowest, path) != expected || net.classes > 256)
        throw ls::DataError(
            fmt::format("{}: {} is not that of a U-Net of width {} with up to 256 classes; give a file that unet "
                        "train or the PyTorch program has saved",
                        path.string(), lowest, net.width));
    return net;
}

/// What `text` says, if it is what metadata_of writes.
std::vector<ls::MaskValue> mask_values_in(const std::string& text, const Options& net,
                                          const std::filesystem::path& path) {
    try {
        const auto numbers = nlohmann::json::parse(text).get<std::vector<std::vector<int>>>();
        std::size_t channels = numbers.empty() ? 0 : numbers[0].size();
        std::vector<ls::MaskValue> values;
        for (const std::vector<int>& value : numbers) {
            const bool fits = std::all_of(value.begin(), value.end(), [](int n) { return n >= 0 && n <= 255; });
            channels = fits && value.size() == channels ? channels : 0;
            values.emplace_back(value.begin(), value.end());
        }
        const bool enough = static_cast<std::int64_t>(values.size()) <= std::max<std::int64_t>(net.classes, 2);
        if (channels >= 1 && channels <= 4 && enough) return values;
    } catch (const nlohmann::json::exception&) {  // said below
    }
    throw ls::DataError(fmt::format("{}: its mask_values '{}' are none of a network of {} classes", path.string(),
                                    text.substr(0, 80), net.classes));
}

}  // namespace

ModelFile describe(const std::filesystem::path& path) {
    ModelFile found;
    if (is_archive(path)) {
        found.net = network(shapes_of(ls::PthFile(path)), path);
    } else {
        const ls::SafetensorsFile file(path);
        found.net = network(shapes_of(file), path);
        if (const auto text = file.metadata().find("mask_values"); text != file.metadata().end()) {
            found.mask_values = mask_values_in(text->second, found.net, path);
            found.knows_mask_values = true;
        }
        if (const auto text = file.metadata().find("scale"); text != file.metadata().end())
            if (const double scale = std::atof(text->second.c_str()); scale > 0 && scale <= 1) found.scale = scale;
    }
    if (!found.knows_mask_values)
        for (std::int64_t value = 0; value < std::max<std::int64_t>(2, found.net.classes); ++value)
            found.mask_values.push_back({static_cast<std::uint8_t>(value)});
    return found;
}

std::map<std::string, std::string> metadata_of(const std::vector<ls::MaskValue>& mask_values, double scale) {
    return {{"mask_values", nlohmann::json(mask_values).dump()}, {"scale", fmt::format("{}", scale)}};
}

std::string flags_of(const Options& net) {
    return fmt::format("--classes {} --width {}{}", net.classes, net.width, net.bilinear ? " --bilinear" : "");
}

}  // namespace unet
