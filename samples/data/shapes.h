// A generator of vehicle-like shapes in front of textured walls: a dataset for segmentation without a download, in the
// layout of Kaggle's Carvana set.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/parallel/data/image.h"

namespace samples {

struct ShapeDrawing {
    lockstep::HostImage image;  ///< RGB
    lockstep::HostImage mask;   ///< palette of black and white: index 1 is vehicle
};

/// Draws one vehicle. (seed, index, width, height) determines every pixel: the same on every machine and compiler, in
/// any order of calls; different `index` give independent drawings. Kind, colour, size and position of the vehicle
/// vary, as do wall, floor, background objects, light, shadow, reflection and noise. The mask excludes shadow and
/// reflection. Throws InvalidArgument for sides outside 32 to 4096 pixels.
ShapeDrawing draw_shape(std::uint64_t seed, std::uint64_t index, int width, int height);

struct ShapesOptions {
    std::int64_t count = 320;  ///< images
    int width = 480, height = 320;
    std::uint64_t seed = 1;
};

/// Writes `directory`/imgs/shape_00000.jpg and so on with `directory`/masks/shape_00000_mask.gif, on all cores, and
/// creates missing folders. Throws InvalidArgument for counts outside 1 to 100,000, for sides as draw_shape, if a
/// folder cannot be written, and if one holds other files, which would become part of the set; DataError if writing
/// fails.
void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options = {});

}  // namespace samples
