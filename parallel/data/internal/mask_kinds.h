// Meaning of the pixels in a set of mask files, some of which have palettes: an index or its colour.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image.h"

namespace lockstep::internal {

// Values of mask files and the classes that they represent.

/// Values of up to four channels in one number, ordered channel by channel.
using PackedValue = std::uint32_t;

PackedValue packed_value(std::span<const std::uint8_t> channels);
std::vector<std::uint8_t> unpacked_value(PackedValue value, int channels);
/// "7", "(255, 0, 0)"
std::string value_text(PackedValue value, int channels);

/// All values of a mask. Stops if there are more than `most`.
std::set<PackedValue> values_of(const HostImage& mask, std::size_t most);

/// Maps values to classes.
class MaskClasses {
public:
    MaskClasses() = default;
    /// A value of pixels without a class, and the value that is written for them.
    struct Ignored {
        PackedValue value;
        std::int64_t written;
    };
    /// values[i] is the value of class i, packed from `channels`.
    MaskClasses(std::vector<PackedValue> values, int channels, std::optional<Ignored> ignored = std::nullopt);

    const std::vector<PackedValue>& values() const { return values_; }
    int channels() const { return channels_; }
    bool contains(PackedValue value) const { return find(value).has_value(); }
    /// Writes the class of every pixel. Returns the first value without a class, after which nothing is written.
    std::optional<PackedValue> write(const HostImage& mask, std::span<std::int64_t> to) const;

private:
    std::optional<std::int64_t> find(PackedValue value) const;

    std::vector<PackedValue> values_;
    std::vector<std::pair<PackedValue, std::int64_t>> sorted_;  // value, class
    int channels_ = 1;
};

using Colour = std::array<std::uint8_t, 3>;
/// The colour of each index that is used.
using UsedPalette = std::map<PackedValue, Colour>;

/// One mask file of a set.
struct MaskFile {
    std::filesystem::path path;
    ImageMode mode = ImageMode::grey;
    std::set<PackedValue> values;  ///< as stored: indices of a palette
    UsedPalette palette;           ///< for mode palette
};

/// The value of a pixel in a file with a palette.
enum class PaletteReading : std::uint8_t {
    index,
    level,  ///< its colour, a grey, as one number: palettes differ, or are mixed with grey masks
    colour  ///< its colour as three numbers
};

/// Known facts before the files are read: the values of the classes, and their colours in the training masks.
struct KnownValues {
    std::set<PackedValue> values;  ///< empty: not known
    int channels = 0;
    UsedPalette palette;
};

/// Compares palettes by the colours of the used indices. Equal palettes are read as indices. If they differ, the
/// colours are read, with a warning. Throws DataError, naming a file, for ambiguous masks.
PaletteReading palette_reading(const std::vector<MaskFile>& files, const KnownValues& known);

/// The mask with its palette read that way; masks without a palette are unchanged.
HostImage read_palette(const HostImage& mask, PaletteReading reading);
/// The values of a file, read that way.
std::set<PackedValue> values_of(const MaskFile& file, PaletteReading reading);
/// The number of channels of a file, read that way.
int channels_of(const MaskFile& file, PaletteReading reading);

/// The used entries of the palettes of all files.
UsedPalette palette_of(const std::vector<MaskFile>& files);

}  // namespace lockstep::internal
