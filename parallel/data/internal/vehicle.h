// Vehicles seen from the side, drawn on a canvas.
#pragma once

#include "lockstep/parallel/data/internal/canvas.h"
#include "lockstep/parallel/data/internal/dice.h"

namespace lockstep::internal {

/// Where a vehicle stands on the canvas, in pixels.
struct VehiclePlace {
    double left, length;  ///< from bumper to bumper
    double ground;        ///< y of the lowest points of its wheels
    double height;        ///< of its roof over the ground
};

/// Draws one of several kinds in some colour, size and place, all of it inside of the canvas.
VehiclePlace draw_vehicle(Canvas& canvas, int width, int height, Dice& dice);

/// A colour that a vehicle or a thing behind it may have.
CanvasColour paint_colour(Dice& dice);

}  // namespace lockstep::internal
