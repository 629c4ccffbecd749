// Meaning of the pixels in a set of mask files, some of which have palettes: an index or its colour.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/parallel/data/image.h"
#include "lockstep/parallel/data/internal/mask_classes.h"

namespace lockstep::internal {

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

/// Palettes are compared by the colours of the indices that are used. Equal ones are read as indices; of those that
/// differ the colours are read, which is a warning. Throws DataError, naming a file, for masks that have two meanings.
PaletteReading palette_reading(const std::vector<MaskFile>& files, const KnownValues& known);

/// The mask with its palette read that way; others stay as they are.
HostImage read_palette(const HostImage& mask, PaletteReading reading);
/// Values of a file, read that way.
std::set<PackedValue> values_of(const MaskFile& file, PaletteReading reading);
/// The numbers per pixel of a file, read that way.
int channels_of(const MaskFile& file, PaletteReading reading);

/// The used entries of the palettes of all files.
UsedPalette palette_of(const std::vector<MaskFile>& files);

}  // namespace lockstep::internal
