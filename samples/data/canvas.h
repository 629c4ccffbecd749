// A raster on which smooth shapes are painted, four samples per pixel.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace samples {

/// In pixels, x to the right, y down.
struct CanvasPoint {
    double x, y;
};

/// Red, green and blue, 0 to 255; intermediate values may exceed that range.
struct CanvasColour {
    double red = 0, green = 0, blue = 0;
};
inline CanvasColour operator*(double factor, CanvasColour c) {
    return {factor * c.red, factor * c.green, factor * c.blue};
}
inline CanvasColour operator+(CanvasColour a, CanvasColour b) {
    return {a.red + b.red, a.green + b.green, a.blue + b.blue};
}

class Canvas {
public:
    Canvas(int width, int height);

    /// Paints the inside (even-odd rule) over the present contents, with colour(point).
    void fill(std::span<const CanvasPoint> outline, const std::function<CanvasColour(CanvasPoint)>& colour);

    /// The mean colour of the painted samples of a pixel and their share of it, 0 to 1. Empty outside of the canvas.
    struct Pixel {
        CanvasColour colour;
        double cover = 0;
    };
    Pixel pixel(int x, int y) const;

private:
    static constexpr int samples = 2;  ///< along either side of a pixel
    int width_, height_;               ///< in samples
    std::vector<CanvasColour> colours_;
    std::vector<bool> painted_;
};

/// A closed smooth curve through `points`, as a polygon.
std::vector<CanvasPoint> smooth_outline(std::span<const CanvasPoint> points);
/// An ellipse as a polygon.
std::vector<CanvasPoint> ellipse_outline(CanvasPoint centre, double radius_x, double radius_y);

}  // namespace samples
