// Vehicle-like shapes before textured walls, drawn by the library itself, so that everybody has a data set for
// segmentation, in the files and under the names of Kaggle's Carvana set.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/parallel/data/image.h"

namespace lockstep {

struct ShapeDrawing {
    HostImage image;  ///< RGB
    HostImage mask;   ///< palette of black and white: index 1 is vehicle
};

/// Draws one vehicle. (seed, index, width, height) decides every pixel: the same on every machine and compiler, in any
/// order of calls; different `index` give independent drawings. Kind, colour, size and place of the vehicle vary, as do
/// wall, floor, things behind, light, shadow, reflection and noise; shadow and reflection do not belong to it. Throws
/// InvalidArgument for sides outside of 32 to 4096 pixels.
ShapeDrawing draw_shape(std::uint64_t seed, std::uint64_t index, int width, int height);

struct ShapesOptions {
    std::int64_t count = 320;  ///< images
    int width = 480, height = 320;
    std::uint64_t seed = 1;
};

/// Writes `directory`/imgs/shape_00000.jpg and so on with `directory`/masks/shape_00000_mask.gif, on all cores, and
/// makes folders that are missing. Throws InvalidArgument for counts outside of 1 to 100,000, sides as draw_shape,
/// where a folder cannot be made or written, and where one holds other files, which would become part of the set;
/// DataError when writing fails.
void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options = {});

}  // namespace lockstep
