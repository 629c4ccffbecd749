// The skeletons of the digits: the movements of a pen, before the variations of a hand.
#pragma once

#include <span>
#include <vector>

namespace samples {

/// A point of the unit square: x to the right, y down.
struct PenPoint {
    double x;
    double y;
};

/// One way to write a digit. Each stroke is a list of numbers of points and is drawn as a smooth curve through them;
/// strokes that share a point join there in a corner, however the points are moved.
struct DigitShape {
    std::vector<PenPoint> points;
    std::vector<std::vector<int>> strokes;
};

/// All ways to write `digit` (0 to 9); never empty.
std::span<const DigitShape> digit_shapes(int digit);

}  // namespace samples
