#include "lockstep/samples/apps/unet/data.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/digest.h"
#include "lockstep/samples/apps/unet/model_file.h"

namespace unet {

namespace ls = lockstep;

void MaskFlags::add_to(CLI::App& app) {
    const auto one = [](const std::string& text) {
        const auto values = values_in(text);
        return values && values->size() == 1 ? std::string()
                                             : "value is " + text + "; expected one such as 255 or 255:255:255";
    };
    const auto list = [](const std::string& text) {
        return values_in(text) ? std::string()
                               : "value is " + text + "; expected a list such as 0,255 or 0:0:0,255:0:0";
    };
    app.add_option("--mask-values", mask_values,
                   "values or colours (0:0:0,255:0:0) of class 0, 1, ...; default: as found")
        ->type_name("LIST")
        ->check(CLI::Validator(list, ""));
    app.add_option("--ignore-value", ignore_value, "mask value of pixels excluded from the loss and the scores")
        ->type_name("VALUE")
        ->check(CLI::Validator(one, ""));
}

std::vector<ls::MaskValue> MaskFlags::values() const {
    return mask_values.empty() ? std::vector<ls::MaskValue>() : values_in(mask_values).value();
}

ls::MaskValue MaskFlags::ignored() const {
    return ignore_value.empty() ? ls::MaskValue() : values_in(ignore_value).value()[0];
}

ls::SegmentationFolder open_images(const DataOptions& options) {
    const auto folder = options.directory / "imgs";
    ls::SegmentationFolder images(folder, options.directory / "masks",
                                  {.scale = options.scale,
                                   .mask_values = options.mask_values,
                                   .mask_palette = options.mask_palette,
                                   .ignore_value = options.ignore_value,
                                   .classes = std::max(options.classes, 2)});
    const ls::Shape size = images.fields()[1].shape;
    require_room(fmt::format("{}: the images", folder.string()), options.scale, size[0], size[1]);
    if (options.channels && *options.channels != images.channels())
        throw program::UsageError(fmt::format("{}: images have {} {}; the network expects {}", folder.string(),
                                              images.channels(), images.channels() == 1 ? "channel" : "channels",
                                              *options.channels));
    return images;
}

namespace {

/// Adds size and contents of the file: all bytes, or four parts from the first byte to the last.
void add_file(program::Digest& digest, const std::filesystem::path& file) {
    constexpr std::uintmax_t part = std::uintmax_t{16} << 10, parts = 4;
    const std::uintmax_t size = std::filesystem::file_size(file);
    std::ifstream stream(file, std::ios::binary);
    std::vector<char> bytes;
    const auto add = [&](std::uintmax_t begin, std::uintmax_t count) {
        bytes.resize(count);
        stream.seekg(static_cast<std::streamoff>(begin));
        stream.read(bytes.data(), static_cast<std::streamsize>(count));
        if (!stream) throw ls::DataError(fmt::format("{}: cannot be read", file.string()));
        digest.add(std::as_bytes(std::span(bytes)));
    };
    digest.add(size);
    if (size <= part * parts) return add(0, size);
    for (std::uintmax_t i = 0; i < parts; ++i) add((size - part) / (parts - 1) * i, part);
}

}  // namespace

std::string describe(const ls::SegmentationFolder& images) {
    program::Digest digest;
    for (std::int64_t row = 0; row < images.size(); ++row)
        for (const auto& file : {images.image_file(row), images.mask_file(row)}) {
            digest.add(std::as_bytes(std::span(file.filename().native())));
            add_file(digest, file);
        }
    return fmt::format("{} images, {:016x}", images.size(), digest.value());
}

void require_room(const std::string& what, double scale, std::int64_t height, std::int64_t width) {
    constexpr std::int64_t least = 16;
    if (height < least || width < least)
        throw program::UsageError(
            fmt::format("--scale {}: {} become {} x {} (width x height); expected at least {} x {}", scale, what, width,
                        height, least, least));
}

Split split(const ls::SegmentationFolder& images, double percent) {
    const std::int64_t size = images.size();
    // As int(len(dataset) * val_percent) with val_percent = percent / 100.
    const auto validation = static_cast<std::int64_t>(static_cast<double>(size) * (percent / 100));
    if (validation == size || (validation == 0 && percent > 0))
        throw program::UsageError(fmt::format("--validation {}: leaves none of {} {} to {} on; expected {}", percent,
                                              size, size == 1 ? "image" : "images",
                                              validation == size ? "train" : "validate",
                                              validation == size ? "less" : "more, or 0 to train without validation"));
    const std::vector<std::int64_t> sizes{size - validation, validation};
    if (validation == 0) return {ls::random_split(images, {size}, 0)[0], std::nullopt};
    auto parts = ls::random_split(images, sizes, 0);
    return {std::move(parts[0]), std::move(parts[1])};
}

}  // namespace unet
