// Vehicles seen from the side, drawn on a canvas.
#pragma once

#include "lockstep/samples/data/canvas.h"
#include "lockstep/samples/data/split_mix.h"

namespace samples {

/// Position of a vehicle on the canvas, in pixels.
struct VehiclePlace {
    double left, length;  ///< from bumper to bumper
    double ground;        ///< y of the lowest points of its wheels
    double height;        ///< height of the roof above the ground
};

/// Draws one of several kinds in some colour, size and place, completely inside the canvas.
VehiclePlace draw_vehicle(Canvas& canvas, int width, int height, SplitMix& random);

/// A possible colour of a vehicle or of a thing in the background.
CanvasColour paint_colour(SplitMix& random);

}  // namespace samples
