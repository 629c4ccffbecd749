#include "lockstep/samples/apps/unet/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

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

/// Shape of the weight of a convolution.
ls::Shape shape_of(const Shapes& shapes, const std::string& name, const std::filesystem::path& path) {
    const auto found = shapes.find(name);
    if (found == shapes.end() || found->second.dims() != 4)
        throw ls::DataError(
            fmt::format("{}: not a U-Net, {} is missing; expected a file saved by unet train or the PyTorch program",
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
    // Memory is allocated for the actual shapes, not for those that the first layer implies.
    const std::string lowest = "down4.maxpool_conv.1.double_conv.0.weight";
    const ls::Shape expected{16 * net.width / (net.bilinear ? 2 : 1), 8 * net.width, 3, 3};
    if (shape_of(shapes, lowest, path) != expected || net.classes > 256)
        throw ls::DataError(
            fmt::format("{}: {} does not fit a U-Net of width {} with up to 256 classes; expected a file saved by "
                        "unet train or the PyTorch program",
                        path.string(), lowest, net.width));
    return net;
}

/// The values of classes in those numbers; nullopt if they do not fit the number of classes.
std::optional<std::vector<ls::MaskValue>> mask_values_of(const std::vector<std::vector<std::int64_t>>& numbers,
                                                         std::int64_t classes) {
    std::size_t channels = numbers.empty() ? 0 : numbers[0].size();
    std::vector<ls::MaskValue> values;
    for (const std::vector<std::int64_t>& value : numbers) {
        const bool fits = std::all_of(value.begin(), value.end(), [](std::int64_t n) { return n >= 0 && n <= 255; });
        channels = fits && value.size() == channels ? channels : 0;
        values.emplace_back(value.begin(), value.end());
    }
    const bool enough = std::ssize(values) <= std::max<std::int64_t>(classes, 2);
    if (channels < 1 || channels > 4 || !enough) return std::nullopt;
    return values;
}

/// The values in `text`, which metadata_of has written.
std::vector<ls::MaskValue> mask_values_in(const std::string& text, const Options& net,
                                          const std::filesystem::path& path) {
    try {
        if (auto values =
                mask_values_of(nlohmann::json::parse(text).get<std::vector<std::vector<std::int64_t>>>(), net.classes))
            return *std::move(values);
    } catch (const nlohmann::json::exception&) {  // reported below
    }
    throw ls::DataError(fmt::format("{}: mask_values is '{}'; expected a list for {} classes", path.string(),
                                    text.substr(0, 80), net.classes));
}

/// The list that the PyTorch program saves with the weights: numbers, or lists of them for colours. A one-bit mask has
/// False and True.
std::vector<ls::MaskValue> mask_values_in(const ls::PthValue& value, const Options& net,
                                          const std::filesystem::path& path) {
    const auto number_of = [](const ls::PthValue& number) -> std::int64_t {
        if (const auto* whole = number.as<std::int64_t>()) return *whole;
        if (const auto* truth = number.as<bool>()) return *truth ? 255 : 0;
        return -1;
    };
    std::vector<std::vector<std::int64_t>> numbers;
    if (const auto* list = value.as<ls::PthValue::List>())
        for (const ls::PthValue& entry : *list) {
            numbers.emplace_back();
            if (const auto* colour = entry.as<ls::PthValue::List>())
                for (const ls::PthValue& number : *colour) numbers.back().push_back(number_of(number));
            else
                numbers.back().push_back(number_of(entry));
        }
    if (auto values = mask_values_of(numbers, net.classes)) return *std::move(values);
    throw ls::DataError(
        fmt::format("{}: mask_values does not fit a network of {} classes; expected a list of numbers or colours "
                    "of up to 255",
                    path.string(), net.classes));
}

std::map<std::uint8_t, std::array<std::uint8_t, 3>> palette_in(const std::string& text,
                                                               const std::filesystem::path& path) {
    try {
        std::map<std::uint8_t, std::array<std::uint8_t, 3>> palette;
        bool good = true;
        for (const auto& entry : nlohmann::json::parse(text).get<std::vector<std::array<int, 4>>>()) {
            good &= std::all_of(entry.begin(), entry.end(), [](int n) { return n >= 0 && n <= 255; });
            const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(entry[i]); };
            palette[byte(0)] = {byte(1), byte(2), byte(3)};
        }
        if (good) return palette;
    } catch (const nlohmann::json::exception&) {  // reported below
    }
    throw ls::DataError(fmt::format("{}: mask_palette is '{}'; expected a list of [index, red, green, blue]",
                                    path.string(), text.substr(0, 80)));
}

}  // namespace

void add_model_flag(CLI::App& app, std::filesystem::path& model) {
    app.add_option("--model,-m,--load,-f", model,
                   "weights: a checkpoint of unet train, or a .pth of the PyTorch program (required)")
        ->type_name("FILE")
        ->required();
}

ModelFile describe(const std::filesystem::path& path) {
    ModelFile found;
    if (is_archive(path)) {
        const ls::PthFile file(path);
        found.net = network(shapes_of(file), path);
        if (const std::optional<ls::PthValue> values = file.value("mask_values")) {
            found.mask_values = mask_values_in(*values, found.net, path);
            found.knows_mask_values = true;
        }
    } else {
        const ls::SafetensorsFile file(path);
        found.net = network(shapes_of(file), path);
        if (const auto text = file.metadata().find("mask_values"); text != file.metadata().end()) {
            found.mask_values = mask_values_in(text->second, found.net, path);
            found.knows_mask_values = true;
        }
        const auto& metadata = file.metadata();
        if (const auto text = metadata.find("mask_palette"); text != metadata.end())
            found.mask_palette = palette_in(text->second, path);
        if (const auto text = metadata.find("ignore_value"); text != metadata.end())
            if (const auto values = values_in(text->second); values && values->size() == 1)
                found.ignore_value = values->front();
        if (const auto text = metadata.find("scale"); text != metadata.end()) {
            double scale = 0;
            const std::string& digits = text->second;
            const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), scale);
            if (error == std::errc() && scale > 0 && scale <= 1) found.scale = scale;
        }
    }
    if (!found.knows_mask_values)
        for (std::int64_t value = 0; value < std::max<std::int64_t>(2, found.net.classes); ++value)
            found.mask_values.push_back({static_cast<std::uint8_t>(value)});
    return found;
}

std::map<std::string, std::string> metadata_of(const ls::SegmentationFolder& images, const ls::MaskValue& ignore_value,
                                               double scale) {
    std::map<std::string, std::string> metadata{{"mask_values", nlohmann::json(images.mask_values()).dump()},
                                                {"scale", fmt::format("{}", scale)}};
    if (!images.mask_palette().empty()) {
        nlohmann::json palette = nlohmann::json::array();
        for (const auto& [index, colour] : images.mask_palette())
            palette.push_back({index, colour[0], colour[1], colour[2]});
        metadata["mask_palette"] = palette.dump();
    }
    if (!ignore_value.empty()) metadata["ignore_value"] = text_of({ignore_value});
    return metadata;
}

std::string text_of(const std::vector<ls::MaskValue>& values) {
    std::string text;
    for (const ls::MaskValue& value : values)
        text += fmt::format("{}{}", text.empty() ? "" : ",", fmt::join(value, ":"));
    return text;
}

std::optional<std::vector<ls::MaskValue>> values_in(const std::string& text) {
    std::vector<ls::MaskValue> values(1);
    const char *at = text.data(), *const end = at + text.size();
    for (;;) {
        std::uint8_t number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error != std::errc()) return std::nullopt;
        values.back().push_back(number);
        if (next == end) break;
        if (*next != ',' && *next != ':') return std::nullopt;
        if (*next == ',') values.emplace_back();
        at = next + 1;
    }
    for (const ls::MaskValue& value : values)
        if (value.size() > 4 || value.size() != values[0].size()) return std::nullopt;
    return values;
}

std::string flags_of(const Options& net) {
    return fmt::format("--classes {} --width {}{}", net.classes, net.width, net.bilinear ? " --bilinear" : "");
}

}  // namespace unet
