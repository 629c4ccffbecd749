#include "lockstep/samples/data/canvas.h"

#include <algorithm>
#include <cmath>

namespace samples {

Canvas::Canvas(int width, int height)
    : width_(samples * width),
      height_(samples * height),
      colours_(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_)),
      painted_(colours_.size()) {}

void Canvas::fill(std::span<const CanvasPoint> outline, const std::function<CanvasColour(CanvasPoint)>& colour) {
    double top = outline[0].y, bottom = top;
    for (const CanvasPoint& point : outline) {
        top = std::min(top, point.y);
        bottom = std::max(bottom, point.y);
    }
    const int first = static_cast<int>(std::clamp(std::floor(top * samples), 0.0, static_cast<double>(height_)));
    const int end = static_cast<int>(std::clamp(std::ceil(bottom * samples), 0.0, static_cast<double>(height_)));
    std::vector<double> crossings;
    for (int row = first; row < end; ++row) {
        const double y = (row + 0.5) / samples;
        crossings.clear();
        for (std::size_t i = 0; i < outline.size(); ++i) {
            const CanvasPoint &a = outline[i], &b = outline[(i + 1) % outline.size()];
            if ((a.y <= y) != (b.y <= y)) crossings.push_back(a.x + (y - a.y) * (b.x - a.x) / (b.y - a.y));
        }
        std::sort(crossings.begin(), crossings.end());
        for (std::size_t i = 0; i + 1 < crossings.size(); i += 2) {
            const auto column = [&](double x) {
                return static_cast<int>(std::clamp(std::ceil(x * samples - 0.5), 0.0, static_cast<double>(width_)));
            };
            for (int c = column(crossings[i]); c < column(crossings[i + 1]); ++c) {
                const auto at =
                    static_cast<std::size_t>(row) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(c);
                colours_[at] = colour({(c + 0.5) / samples, y});
                painted_[at] = true;
            }
        }
    }
}

Canvas::Pixel Canvas::pixel(int x, int y) const {
    Pixel pixel;
    if (x < 0 || y < 0 || x * samples >= width_ || y * samples >= height_) return pixel;
    int painted = 0;
    for (int row = y * samples; row < (y + 1) * samples; ++row)
        for (int column = x * samples; column < (x + 1) * samples; ++column) {
            const auto at =
                static_cast<std::size_t>(row) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(column);
            if (!painted_[at]) continue;
            pixel.colour = pixel.colour + colours_[at];
            ++painted;
        }
    if (painted > 0) pixel.colour = (1.0 / painted) * pixel.colour;
    pixel.cover = static_cast<double>(painted) / (samples * samples);
    return pixel;
}

std::vector<CanvasPoint> smooth_outline(std::span<const CanvasPoint> points) {
    constexpr int pieces = 6;
    const std::size_t count = points.size();
    std::vector<CanvasPoint> outline;
    for (std::size_t i = 0; i < count; ++i) {
        const CanvasPoint &before = points[(i + count - 1) % count], &from = points[i], &to = points[(i + 1) % count],
                          &after = points[(i + 2) % count];
        for (int k = 0; k < pieces; ++k) {
            const double t = static_cast<double>(k) / pieces;
            // Catmull-Rom with half of the usual tension, which preserves corners
            const auto along = [&](double p0, double p1, double p2, double p3) {
                const double m1 = 0.25 * (p2 - p0), m2 = 0.25 * (p3 - p1);
                return p1 + t * (m1 + t * (3 * (p2 - p1) - 2 * m1 - m2 + t * (2 * (p1 - p2) + m1 + m2)));
            };
            outline.push_back({along(before.x, from.x, to.x, after.x), along(before.y, from.y, to.y, after.y)});
        }
    }
    return outline;
}

std::vector<CanvasPoint> ellipse_outline(CanvasPoint centre, double radius_x, double radius_y) {
    constexpr int corners = 48;
    constexpr double cosine = 0.99144486137381041, sine = 0.13052619222005157;  // for 1/48 turn
    std::vector<CanvasPoint> outline;
    double x = 1, y = 0;
    for (int i = 0; i < corners; ++i) {
        outline.push_back({centre.x + radius_x * x, centre.y + radius_y * y});
        const double turned = cosine * x - sine * y;
        y = sine * x + cosine * y;
        x = turned;
    }
    return outline;
}

}  // namespace samples
