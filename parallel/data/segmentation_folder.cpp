#include "lockstep/parallel/data/segmentation_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/image_tensor.h"
#include "lockstep/parallel/data/internal/image_pairs.h"
#include "lockstep/parallel/data/internal/mask_kinds.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

using internal::ImagePair;
using internal::MaskClasses;
using internal::MaskFile;
using internal::PackedValue;
using internal::PaletteReading;

namespace {

/// One class per value: a file with more is a picture, or a smoothed mask.
constexpr std::size_t max_values = 256;

std::string size_text(const auto& image) { return fmt::format("{} x {}", image.width, image.height); }

/// "1 channel", "3 channels"
std::string counted(int count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

/// Number of channels of an image as input of the network.
int channels_for_network(ImageMode mode) { return channels_of(mode == ImageMode::palette ? ImageMode::rgb : mode); }

/// Throws DataError unless it matches the first image of the set.
void require_alike(const std::string& name, const ImageHeader& image, const std::string& first_name,
                   const ImageHeader& first) {
    if (image.height != first.height || image.width != first.width)
        throw DataError(
            fmt::format("{}: the image is {} (width x height), but {} is {}; expected the same size for all images",
                        name, size_text(image), first_name, size_text(first)));
    if (channels_for_network(image.mode) != channels_for_network(first.mode))
        throw DataError(fmt::format("{}: the image is {} with {}, but {} is {} with {}; expected the same mode", name,
                                    name_of(image.mode), counted(channels_for_network(image.mode), "channel"),
                                    first_name, name_of(first.mode),
                                    counted(channels_for_network(first.mode), "channel")));
}

HostImage read_mask(const std::filesystem::path& path, const std::filesystem::path& image_path,
                    const ImageHeader& image) {
    HostImage mask = read_image(path);
    if (mask.height != image.height || mask.width != image.width)
        throw DataError(
            fmt::format("{}: the mask is {} (width x height), but its image {} is {}{}; expected the same size",
                        path.string(), size_text(mask), image_path.string(), size_text(image),
                        image.orientation != 1 ? fmt::format(", with EXIF orientation {}", image.orientation) : ""));
    return mask;
}

/// Result of reading all files.
struct FolderScan {
    ImageHeader image;  ///< common to all images
    std::vector<MaskFile> masks;
    PaletteReading reading = PaletteReading::index;
    int mask_channels = 0;  ///< common to all masks, read that way
};

/// Reports a mask with unexpected values; `known` are the expected ones.
[[noreturn]] void refuse_value(const std::filesystem::path& path, PackedValue value, const MaskClasses& known) {
    std::string list;
    for (const PackedValue v : known.values())
        list += (list.empty() ? "" : ", ") + internal::value_text(v, known.channels());
    throw DataError(fmt::format("{}: the mask has a pixel of {}, which is not the value of a class; expected one of {}",
                                path.string(), internal::value_text(value, known.channels()), list));
}

void require_mask_channels(const std::filesystem::path& path, ImageMode mode, int found, int channels,
                           const std::string& those_of) {
    if (found != channels)
        throw DataError(fmt::format("{}: the mask is {} with {} per pixel, but {} {}; expected the same", path.string(),
                                    name_of(mode), counted(found, "number"), those_of, channels));
}

void warn_of_images(const std::vector<ImagePair>& pairs, const std::vector<std::uint16_t>& peaks,
                    const std::vector<int>& orientations) {
    std::vector<std::filesystem::path> images;
    for (const ImagePair& pair : pairs) images.push_back(pair.image);
    warn_of_unused_range(images, peaks);
    const auto turned = std::find_if(orientations.begin(), orientations.end(), [](int value) { return value != 1; });
    if (turned == orientations.end()) return;
    const auto count = std::count_if(turned, orientations.end(), [](int value) { return value != 1; });
    warn(
        fmt::format("{}: the image has EXIF orientation {}, which is ignored{}; if masks are drawn on the rotated "
                    "image, rotate its pixels",
                    pairs[static_cast<std::size_t>(turned - orientations.begin())].image.string(), *turned,
                    count > 1 ? fmt::format(", as for {} more", count - 1) : ""));
}

MaskFile mask_file(const std::filesystem::path& path, const HostImage& mask) {
    MaskFile file{path, mask.mode, internal::values_of(mask, max_values), {}};
    if (file.values.size() > max_values)
        throw DataError(
            fmt::format("{}: the mask has more than {} different values; expected one per class (masks without "
                        "smoothing, as PNG or GIF)",
                        path.string(), max_values));
    if (mask.mode == ImageMode::palette)
        for (const PackedValue index : file.values)
            file.palette[index] = index < mask.palette.size() ? mask.palette[index] : internal::Colour{};
    return file;
}

/// `given`: the classes, if the options name them.
FolderScan scan_folder(const std::vector<ImagePair>& pairs, const SegmentationFolderOptions& options,
                       const MaskClasses* given) {
    FolderScan scan;
    const std::string first_name = pairs[0].image.string();
    scan.image = read_image_header(pairs[0].image);
    if (const int found = channels_for_network(scan.image.mode); options.channels != 0 && found != options.channels)
        throw DataError(fmt::format("{}: the image is {} with {}, but {} are required; expected {}", first_name,
                                    name_of(scan.image.mode), counted(found, "channel"), options.channels, found));

    scan.masks.resize(pairs.size());
    std::vector<std::uint16_t> peaks(pairs.size());
    std::vector<int> orientations(pairs.size(), 1);
    internal::for_each_row(std::ssize(pairs), options.threads, [&](std::int64_t i) {
        const auto row = static_cast<std::size_t>(i);
        const auto& [image_path, mask_path] = pairs[row];
        const ImageHeader image = read_image_header(image_path);
        require_alike(image_path.string(), image, first_name, scan.image);
        orientations[row] = image.orientation;
        if (image.bits > 8) peaks[row] = read_image(image_path).peak16;
        if (read_image_header(mask_path).bits > 8)
            throw DataError(fmt::format("{}: the mask has 16 bits per channel; expected 8", mask_path.string()));
        scan.masks[row] = mask_file(mask_path, read_mask(mask_path, image_path, image));
    });
    warn_of_images(pairs, peaks, orientations);

    internal::KnownValues known;
    if (given != nullptr) {
        known.values = {given->values().begin(), given->values().end()};
        known.channels = given->channels();
        if (!options.ignore_value.empty()) known.values.insert(internal::packed_value(options.ignore_value));
    }
    for (const auto& [index, colour] : options.mask_palette) known.palette[index] = colour;
    scan.reading = internal::palette_reading(scan.masks, known);
    scan.mask_channels = given != nullptr ? given->channels() : internal::channels_of(scan.masks[0], scan.reading);
    const std::string those_of = given != nullptr ? "the values of the classes have" : pairs[0].mask.string() + " has";
    for (const MaskFile& file : scan.masks) {
        require_mask_channels(file.path, file.mode, internal::channels_of(file, scan.reading), scan.mask_channels,
                              those_of);
        if (given == nullptr) continue;
        for (const PackedValue value : internal::values_of(file, scan.reading))
            if (!given->contains(value)) refuse_value(file.path, value, *given);
    }
    return scan;
}

/// The values of all masks, except the ignored one. Throws for the first mask, by name, that exceeds `most` together
/// with those before it.
std::set<PackedValue> values_of_all(const FolderScan& scan, std::size_t most, std::optional<PackedValue> ignored) {
    std::set<PackedValue> all;
    for (const MaskFile& file : scan.masks) {
        all.merge(internal::values_of(file, scan.reading));
        if (ignored) all.erase(*ignored);
        if (all.size() > most)
            throw DataError(fmt::format(
                "{}: the masks up to this one have {} different values; expected at most {}, the number of classes",
                file.path.string(), all.size(), most));
    }
    return all;
}

void require_value(const char* option, const MaskValue& value) {
    if (value.size() > 4)
        throw InvalidArgument(
            fmt::format("SegmentationFolder: {} has {} numbers; expected 1 to 4", option, value.size()));
}

std::optional<MaskClasses::Ignored> written_as_ignored(std::optional<PackedValue> value) {
    if (!value) return std::nullopt;
    return MaskClasses::Ignored{*value, ignored_class};
}

MaskClasses classes_of(const std::vector<MaskValue>& values, std::optional<PackedValue> ignored) {
    const auto refuse = [](const std::string& what) {
        throw InvalidArgument("SegmentationFolder: mask_values: " + what +
                              "; expected a distinct value of 1 to 4 numbers for each class");
    };
    std::vector<PackedValue> packed;
    for (const MaskValue& value : values) {
        if (value.empty() || value.size() > 4 || value.size() != values[0].size())
            refuse(fmt::format("value of class {} has {} numbers, that of class 0 {}", packed.size(), value.size(),
                               values[0].size()));
        packed.push_back(internal::packed_value(value));
    }
    if (std::set(packed.begin(), packed.end()).size() != packed.size()) refuse("two classes have the same value");
    if (ignored && std::find(packed.begin(), packed.end(), *ignored) != packed.end())
        refuse("the value of a class is ignore_value");
    return {std::move(packed), static_cast<int>(values[0].size()), written_as_ignored(ignored)};
}

}  // namespace

struct SegmentationFolder::Content {
    std::vector<ImagePair> pairs;
    double scale = 1;
    ImageHeader image;  ///< common to all images, as stored in files
    PaletteReading reading = PaletteReading::index;
    std::map<std::uint8_t, std::array<std::uint8_t, 3>> mask_palette;
    MaskClasses classes;
    std::vector<MaskValue> mask_values;
    int class_count = 0;
    std::array<RowField, 2> fields;

    const ImagePair& pair(std::int64_t row) const {
        if (row < 0 || row >= std::ssize(pairs))
            throw InvalidArgument(
                fmt::format("SegmentationFolder: row {} of {}; rows are counted from 0", row, pairs.size()));
        return pairs[static_cast<std::size_t>(row)];
    }
    void read(std::int64_t row, float* image_to, std::int64_t* mask_to) const;
};

void SegmentationFolder::Content::read(std::int64_t row, float* image_to, std::int64_t* mask_to) const {
    const auto& [image_path, mask_path] = pair(row);
    HostImage picture = read_image(image_path);
    require_alike(image_path.string(), {picture.height, picture.width, picture.mode, 8, 1}, pairs[0].image.string(),
                  image);
    if (picture.mode == ImageMode::palette) picture = as_rgb(picture);
    write_channels(scale_image(picture, scale, Resampling::bicubic),
                   {image_to, static_cast<std::size_t>(fields[0].shape.numel())});

    const HostImage stored = read_mask(mask_path, image_path, image);
    const HostImage mask = internal::read_palette(stored, reading);
    require_mask_channels(mask_path, stored.mode, mask.channels(), classes.channels(), "earlier images have");
    const auto unknown = classes.write(scale_image(mask, scale, Resampling::nearest),
                                       {mask_to, static_cast<std::size_t>(fields[1].shape.numel())});
    if (unknown) refuse_value(mask_path, *unknown, classes);
}

SegmentationFolder::SegmentationFolder(const std::filesystem::path& images, const std::filesystem::path& masks,
                                       const SegmentationFolderOptions& options) {
    if (options.classes < 0 || options.channels < 0 || options.threads < 0)
        throw InvalidArgument(
            fmt::format("SegmentationFolder: {} classes, {} channels and {} threads; expected 0 or more",
                        options.classes, options.channels, options.threads));
    auto content = std::make_shared<Content>();
    content->scale = options.scale;
    std::optional<PackedValue> ignored;
    if (!options.ignore_value.empty()) {
        require_value("ignore_value", options.ignore_value);
        ignored = internal::packed_value(options.ignore_value);
    }
    if (!options.mask_values.empty()) {
        content->classes = classes_of(options.mask_values, ignored);
        if (ignored && options.ignore_value.size() != options.mask_values[0].size())
            throw InvalidArgument(fmt::format(
                "SegmentationFolder: ignore_value has {} and mask_values have {}; expected the same number",
                counted(static_cast<int>(options.ignore_value.size()), "number"), options.mask_values[0].size()));
    }
    content->pairs = internal::find_image_pairs(images, masks, options.mask_suffix);
    // Before all files are read, so that an invalid scale is refused early.
    const ImageHeader first = read_image_header(content->pairs[0].image);
    const auto [height, width] = scaled_size(first.height, first.width, options.scale);

    const FolderScan scan =
        scan_folder(content->pairs, options, options.mask_values.empty() ? nullptr : &content->classes);
    content->reading = scan.reading;
    if (ignored && static_cast<int>(options.ignore_value.size()) != scan.mask_channels)
        throw InvalidArgument(fmt::format(
            "SegmentationFolder: ignore_value has {} and a pixel of the masks has {}; expected the same number",
            counted(static_cast<int>(options.ignore_value.size()), "number"), scan.mask_channels));
    if (options.mask_values.empty()) {
        const std::size_t most = options.classes > 0 ? static_cast<std::size_t>(options.classes) : max_values;
        const std::set<PackedValue> values = values_of_all(scan, most, ignored);
        if (values.empty())
            throw DataError(fmt::format("{}: all pixels of all masks have the ignored value",
                                        content->pairs[0].mask.parent_path().string()));
        content->classes = MaskClasses({values.begin(), values.end()}, scan.mask_channels, written_as_ignored(ignored));
    }
    if (scan.reading == PaletteReading::index) {
        content->mask_palette = options.mask_palette;
        for (const auto& [index, colour] : internal::palette_of(scan.masks))
            content->mask_palette.emplace(static_cast<std::uint8_t>(index), colour);
    }
    for (const PackedValue value : content->classes.values())
        content->mask_values.push_back(internal::unpacked_value(value, content->classes.channels()));
    const int values = static_cast<int>(content->mask_values.size());
    if (options.classes != 0 && values > options.classes)
        throw InvalidArgument(fmt::format("SegmentationFolder: {} mask_values for {} classes; expected the same number",
                                          values, options.classes));
    content->class_count = std::max(options.classes, values);
    content->image = scan.image;
    content->fields = {RowField{DType::f32, {channels_for_network(scan.image.mode), height, width}},
                       RowField{DType::i64, {height, width}}};
    content_ = std::move(content);
}

const SegmentationFolder::Content& SegmentationFolder::content() const {
    return detail::content_of(content_, "SegmentationFolder");
}

std::int64_t SegmentationFolder::size() const { return std::ssize(content().pairs); }

std::array<RowField, 2> SegmentationFolder::fields() const { return content().fields; }

void SegmentationFolder::read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const {
    auto* image = reinterpret_cast<float*>(to[0]);
    auto* mask = reinterpret_cast<std::int64_t*>(to[1]);
    for (const std::int64_t row : rows) {
        content().read(row, image, mask);
        image += content().fields[0].shape.numel();
        mask += content().fields[1].shape.numel();
    }
}

std::tuple<Tensor, Tensor> SegmentationFolder::get(std::int64_t row) const {
    const auto& [image_field, mask_field] = content().fields;
    std::vector<float> image(static_cast<std::size_t>(image_field.shape.numel()));
    std::vector<std::int64_t> mask(static_cast<std::size_t>(mask_field.shape.numel()));
    content().read(row, image.data(), mask.data());
    return {Tensor::from(image, image_field.shape), Tensor::from(mask, mask_field.shape)};
}

int SegmentationFolder::channels() const { return static_cast<int>(content().fields[0].shape[0]); }
int SegmentationFolder::classes() const { return content().class_count; }
const std::vector<MaskValue>& SegmentationFolder::mask_values() const { return content().mask_values; }
const std::map<std::uint8_t, std::array<std::uint8_t, 3>>& SegmentationFolder::mask_palette() const {
    return content().mask_palette;
}
const std::filesystem::path& SegmentationFolder::image_file(std::int64_t row) const {
    return content().pair(row).image;
}
const std::filesystem::path& SegmentationFolder::mask_file(std::int64_t row) const { return content().pair(row).mask; }

}  // namespace lockstep
