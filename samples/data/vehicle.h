// Vehicles seen from the side, drawn on a canvas.
#pragma once

#include "lockstep/samples/data/canvas.h"
#include "lockstep/samples/data/split_mix.h"

namespace samples {

/// Where a vehicle stands on the canvas, in pixels.
struct VehiclePlace {
    double left, length;  ///< from bumper to bumper
    double ground;        ///< y of the lowest points of its wheels
    double height;        ///< of its roof over the ground
};

/// Draws one of several kinds in some colour, size and place, all of it inside of the canvas.
VehiclePlace draw_vehicle(Canvas& canvas, int width, int height, SplitMix& random);

/// A colour that a vehicle or a thing behind it may have.
CanvasColour paint_colour(SplitMix& random);

}  // namespace samples
