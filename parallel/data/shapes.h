// Synthetic vehicle-like shapes in front of textured walls: a data set for segmentation that needs no download, with
// the file names of Kaggle's Carvana set.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/parallel/data/image.h"

namespace lockstep {

struct ShapeDrawing {
    HostImage image;  ///< RGB
    HostImage mask;   ///< palette of black and white: index 1 is vehicle
};

/// Draws one vehicle. (seed, index, width, height) determines every pixel: the same on every machine and compiler, in
/// any order of calls. Different values of `index` give independent drawings. Kind, colour, size and position of the
/// vehicle vary, as do wall, floor, background, light, shadow, reflection and noise. Shadow and reflection do not
/// belong to the vehicle's mask. Throws InvalidArgument for sides outside of 32 to 4096 pixels.
ShapeDrawing draw_shape(std::uint64_t seed, std::uint64_t index, int width, int height);

struct ShapesOptions {
    std::int64_t count = 320;  ///< images
    int width = 480, height = 320;
    std::uint64_t seed = 1;
};

/// Writes `directory`/imgs/shape_00000.jpg and so on, and `directory`/masks/shape_00000_mask.gif, on all cores. Missing
/// folders are created. Throws InvalidArgument for counts outside of 1 to 100,000, for sides as draw_shape, if a folder
/// cannot be created or written, and if a folder contains other files, which would become part of the set. Throws
/// DataError if writing fails.
void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options = {});

}  // namespace lockstep
