// The scene around a vehicle: wall, floor and objects behind it, and its shadow and reflection on the floor.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/samples/data/canvas.h"
#include "lockstep/samples/data/split_mix.h"
#include "lockstep/samples/data/vehicle.h"

namespace samples {

/// Wall, floor and things in the background, `width` x `height` pixels, row-major.
std::vector<CanvasColour> draw_scenery(int width, int height, const VehiclePlace& vehicle, SplitMix& random);
/// Darkens the floor around the wheels.
void cast_shadow(std::vector<CanvasColour>& picture, int width, int height, const VehiclePlace& vehicle,
                 SplitMix& random);
/// Reflects the vehicle of `canvas` in the floor.
void mirror_in_floor(std::vector<CanvasColour>& picture, int width, int height, const Canvas& canvas,
                     const VehiclePlace& vehicle, SplitMix& random);

}  // namespace samples
