#include "lockstep/parallel/data/internal/mask_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"

namespace lockstep::internal {

PackedValue packed_value(std::span<const std::uint8_t> channels) {
    PackedValue value = 0;
    for (const std::uint8_t channel : channels) value = value << 8 | channel;
    return value;
}

std::vector<std::uint8_t> unpacked_value(PackedValue value, int channels) {
    std::vector<std::uint8_t> unpacked(static_cast<std::size_t>(channels));
    for (auto channel = unpacked.rbegin(); channel != unpacked.rend(); ++channel, value >>= 8)
        *channel = static_cast<std::uint8_t>(value & 0xff);
    return unpacked;
}

std::string value_text(PackedValue value, int channels) {
    return channels == 1 ? fmt::format("{}", value)
                         : fmt::format("({})", fmt::join(unpacked_value(value, channels), ", "));
}

std::set<PackedValue> values_of(const HostImage& mask, std::size_t most) {
    std::set<PackedValue> values;
    const auto channels = static_cast<std::size_t>(mask.channels());
    PackedValue last = 0;
    for (std::size_t p = 0; p < mask.pixels.size() && values.size() <= most; p += channels) {
        const PackedValue value = packed_value(std::span(mask.pixels).subspan(p, channels));
        if (value == last && !values.empty()) continue;
        values.insert(value);
        last = value;
    }
    return values;
}

MaskClasses::MaskClasses(std::vector<PackedValue> values, int channels, std::optional<Ignored> ignored)
    : values_(std::move(values)), channels_(channels) {
    for (const PackedValue value : values_) sorted_.emplace_back(value, std::ssize(sorted_));
    if (ignored) sorted_.emplace_back(ignored->value, ignored->written);
    std::sort(sorted_.begin(), sorted_.end());
}

std::optional<std::int64_t> MaskClasses::find(PackedValue value) const {
    const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), value,
                                        [](const auto& e, PackedValue v) { return e.first < v; });
    if (found == sorted_.end() || found->first != value) return std::nullopt;
    return found->second;
}

std::optional<PackedValue> MaskClasses::write(const HostImage& mask, std::span<std::int64_t> to) const {
    const auto channels = static_cast<std::size_t>(channels_);
    PackedValue last = 0;
    std::optional<std::int64_t> its_class = find(last);
    for (std::size_t i = 0; i < to.size(); ++i) {
        const PackedValue value = packed_value(std::span(mask.pixels).subspan(i * channels, channels));
        if (value != last) {
            last = value;
            its_class = find(value);
        }
        if (!its_class) return value;
        to[i] = *its_class;
    }
    return std::nullopt;
}

namespace {

PackedValue packed_colour(const Colour& colour) { return packed_value(colour); }
bool is_grey(const Colour& colour) { return colour[0] == colour[1] && colour[1] == colour[2]; }
PackedValue level_of(const Colour& colour) { return colour[0]; }

std::string colour_text(const Colour& colour) { return value_text(packed_colour(colour), 3); }

/// Reason why indices do not identify classes: empty, or how the palettes differ, with the first file, by name, that
/// shows it.
struct Difference {
    std::filesystem::path file;
    std::string text;
};

std::optional<Difference> difference(const std::vector<MaskFile>& files, const UsedPalette& known) {
    struct Seen {
        Colour colour;
        std::string where;
    };
    std::map<PackedValue, Seen> by_index;
    for (const auto& [index, colour] : known) by_index[index] = {colour, "the training masks"};
    std::map<PackedValue, std::pair<PackedValue, std::string>> by_colour;
    std::optional<Difference> twice;
    bool one_file_has_a_colour_twice = false;
    for (const MaskFile& file : files) {
        if (file.mode != ImageMode::palette) continue;
        std::set<PackedValue> own;
        for (const auto& [index, colour] : file.palette) {
            const auto& seen = by_index.emplace(index, Seen{colour, file.path.string()}).first->second;
            if (seen.colour != colour)
                return Difference{file.path, fmt::format("index {} is {} in it and {} in {}", index,
                                                         colour_text(colour), colour_text(seen.colour), seen.where)};
            one_file_has_a_colour_twice |= !own.insert(packed_colour(colour)).second;
            const auto& [other, where] =
                by_colour.emplace(packed_colour(colour), std::pair{index, file.path.string()}).first->second;
            if (other != index && !twice)
                twice = Difference{file.path, fmt::format("colour {} has index {} in it and {} in {}",
                                                          colour_text(colour), index, other, where)};
        }
    }
    // Two indices of one colour within a file are two classes, because its author has distinguished them.
    return one_file_has_a_colour_twice ? std::nullopt : twice;
}

/// Two used indices of one colour in a palette: by colour, their classes would be one.
std::optional<Difference> repeated_colour(const std::vector<MaskFile>& files) {
    for (const MaskFile& file : files) {
        std::map<Colour, PackedValue> seen;
        for (const auto& [index, colour] : file.palette)
            if (const auto& [first, is_new] = seen.emplace(colour, index); !is_new)
                return Difference{file.path, fmt::format("indices {} and {} of its palette have the same colour, {}",
                                                         first->second, index, colour_text(colour))};
    }
    return std::nullopt;
}

std::set<PackedValue> levels_of(const UsedPalette& palette) {
    std::set<PackedValue> levels;
    for (const auto& [index, colour] : palette) levels.insert(level_of(colour));
    return levels;
}

std::set<PackedValue> indices_of(const UsedPalette& palette) {
    std::set<PackedValue> indices;
    for (const auto& [index, colour] : palette) indices.insert(index);
    return indices;
}

bool contains_all(const std::set<PackedValue>& set, const std::set<PackedValue>& part) {
    return std::includes(set.begin(), set.end(), part.begin(), part.end());
}

[[noreturn]] void refuse_mixture(const MaskFile& file, const MaskFile& other) {
    throw DataError(fmt::format("{}: the mask is {}, but {} is {}; expected the same mode for all masks",
                                file.path.string(), name_of(file.mode), other.path.string(), name_of(other.mode)));
}

}  // namespace

UsedPalette palette_of(const std::vector<MaskFile>& files) {
    UsedPalette all;
    for (const MaskFile& file : files) all.insert(file.palette.begin(), file.palette.end());
    return all;
}

PaletteReading palette_reading(const std::vector<MaskFile>& files, const KnownValues& known) {
    const auto first_of = [&](ImageMode mode) {
        const auto found =
            std::find_if(files.begin(), files.end(), [&](const auto& file) { return file.mode == mode; });
        return found == files.end() ? nullptr : &*found;
    };
    const MaskFile *const palette = first_of(ImageMode::palette), *const grey = first_of(ImageMode::grey),
                          *const rgb = first_of(ImageMode::rgb);
    if (!palette) return PaletteReading::index;
    for (const ImageMode mode : {ImageMode::grey_alpha, ImageMode::rgba})
        if (const MaskFile* const other = first_of(mode))
            refuse_mixture(std::max(*palette, *other, [](auto& a, auto& b) { return a.path < b.path; }),
                           std::min(*palette, *other, [](auto& a, auto& b) { return a.path < b.path; }));
    if (rgb && grey) refuse_mixture(*grey, *rgb);
    const std::optional<Difference> repeated = repeated_colour(files);
    const auto by = [&](PaletteReading reading) {
        if (repeated)
            throw DataError(
                fmt::format("{}: {}; expected a distinct colour for each, because classes are identified "
                            "by colour",
                            repeated->file.string(), repeated->text));
        return reading;
    };
    if (rgb || known.channels == 3) return by(PaletteReading::colour);

    std::set<PackedValue> all_levels, all_indices, greys = known.values;
    bool colours_are_grey = true;
    for (const MaskFile& file : files) {
        if (file.mode == ImageMode::grey && known.values.empty()) greys.insert(file.values.begin(), file.values.end());
        all_levels.merge(levels_of(file.palette));
        all_indices.merge(indices_of(file.palette));
        for (const auto& [index, colour] : file.palette) colours_are_grey &= is_grey(colour);
    }
    const std::optional<Difference> unequal = difference(files, known.palette);
    const auto warn_of = [&](const char* how) {
        warn(fmt::format("{}: palettes of the masks differ: {}; classes are identified by {}", unequal->file.string(),
                         unequal->text, how));
    };
    if (greys.empty()) {
        if (!unequal) return PaletteReading::index;
        const PaletteReading reading = by(colours_are_grey ? PaletteReading::level : PaletteReading::colour);
        warn_of(colours_are_grey ? "level of grey" : "colour");
        return reading;
    }
    // The meaning of palettes follows from grey masks in the same set, or from known values.
    const bool by_index = !unequal && contains_all(greys, all_indices),
               by_level = colours_are_grey && !repeated && contains_all(greys, all_levels);
    bool same = !unequal;
    for (const MaskFile& file : files)
        for (const auto& [index, colour] : file.palette) same &= index == level_of(colour);
    if (by_index && by_level && !same && known.palette.empty())
        throw DataError(fmt::format(
            "{}: the indices and the colours of its palette are both values of other masks; convert all masks to grey",
            palette->path.string()));
    if (by_index) return PaletteReading::index;
    if (by_level || (colours_are_grey && known.values.empty())) {
        if (unequal) warn_of("level of grey");
        return by(PaletteReading::level);
    }
    if (unequal)
        throw DataError(
            fmt::format("{}: palettes of the masks differ: {}; convert all masks to one palette, to grey or to "
                        "RGB",
                        unequal->file.string(), unequal->text));
    return PaletteReading::index;
}

HostImage read_palette(const HostImage& mask, PaletteReading reading) {
    if (reading == PaletteReading::index || mask.mode != ImageMode::palette) return mask;
    HostImage rgb = as_rgb(mask);
    if (reading == PaletteReading::colour) return rgb;
    HostImage grey{mask.height, mask.width, ImageMode::grey, {}, {}};
    grey.pixels.reserve(mask.pixels.size());
    for (std::size_t i = 0; i < rgb.pixels.size(); i += 3) grey.pixels.push_back(rgb.pixels[i]);
    return grey;
}

std::set<PackedValue> values_of(const MaskFile& file, PaletteReading reading) {
    if (file.mode != ImageMode::palette || reading == PaletteReading::index) return file.values;
    std::set<PackedValue> values;
    for (const auto& [index, colour] : file.palette)
        values.insert(reading == PaletteReading::level ? level_of(colour) : packed_colour(colour));
    return values;
}

int channels_of(const MaskFile& file, PaletteReading reading) {
    if (file.mode == ImageMode::palette && reading == PaletteReading::colour) return 3;
    return lockstep::channels_of(file.mode);
}

}  // namespace lockstep::internal
