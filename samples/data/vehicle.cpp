#include "lockstep/samples/data/vehicle.h"

#include <algorithm>
#include <array>
#include <vector>

namespace samples {
namespace {

using Outline = std::vector<CanvasPoint>;

/// One kind of vehicle in units of its length: x from the rear bumper to the front one, y up from the ground.
struct VehicleShape {
    Outline body;
    std::vector<Outline> windows;
    double rear_wheel, front_wheel, wheel_radius;
    double belt;  ///< height of the line below the windows
};

const std::vector<VehicleShape>& vehicle_shapes() {
    static const std::vector<VehicleShape> shapes = {
        // sedan
        {{{.02, .07},
          {.00, .16},
          {.03, .215},
          {.17, .23},
          {.29, .30},
          {.44, .325},
          {.57, .305},
          {.70, .23},
          {.90, .195},
          {.985, .15},
          {1.0, .09},
          {.96, .06},
          {.50, .055}},
         {{{.215, .232}, {.30, .288}, {.41, .303}, {.41, .232}},
          {{.435, .232}, {.435, .304}, {.55, .288}, {.65, .232}}},
         .19,
         .81,
         .078,
         .22},
        // hatchback
        {{{.02, .07},
          {.00, .18},
          {.05, .30},
          {.19, .355},
          {.45, .36},
          {.59, .335},
          {.74, .245},
          {.92, .21},
          {.99, .15},
          {.99, .08},
          {.50, .06}},
         {{{.09, .25}, {.13, .315}, {.31, .335}, {.31, .25}},
          {{.34, .25}, {.34, .336}, {.49, .33}, {.57, .305}, {.67, .25}}},
         .19,
         .80,
         .088,
         .24},
        // sport utility
        {{{.01, .09},
          {.00, .25},
          {.03, .37},
          {.10, .405},
          {.54, .41},
          {.64, .37},
          {.73, .285},
          {.93, .26},
          {1.0, .20},
          {.99, .10},
          {.50, .085}},
         {{{.06, .285}, {.08, .365}, {.26, .38}, {.26, .285}},
          {{.29, .285}, {.29, .38}, {.46, .38}, {.46, .285}},
          {{.49, .285}, {.49, .38}, {.55, .375}, {.65, .285}}},
         .20,
         .80,
         .098,
         .27},
        // van
        {{{.00, .07},
          {.00, .42},
          {.03, .455},
          {.66, .46},
          {.76, .43},
          {.88, .27},
          {.98, .22},
          {1.0, .10},
          {.97, .065},
          {.50, .06}},
         {{{.60, .28}, {.60, .40}, {.72, .40}, {.82, .28}}},
         .18,
         .82,
         .080,
         .25},
        // pickup
        {{{.01, .09},
          {.00, .235},
          {.20, .24},
          {.37, .24},
          {.41, .35},
          {.46, .375},
          {.58, .37},
          {.69, .27},
          {.92, .245},
          {1.0, .18},
          {.99, .09},
          {.50, .085}},
         {{{.43, .26}, {.46, .345}, {.57, .342}, {.65, .26}}},
         .19,
         .81,
         .092,
         .24},
        // coupe
        {{{.02, .06},
          {.00, .15},
          {.05, .20},
          {.22, .25},
          {.38, .285},
          {.50, .28},
          {.66, .205},
          {.90, .16},
          {1.0, .11},
          {.98, .055},
          {.50, .05}},
         {{{.26, .205}, {.37, .262}, {.49, .258}, {.60, .205}}},
         .18,
         .80,
         .080,
         .195},
        // bus
        {{{.00, .06}, {.00, .33}, {.02, .36}, {.50, .365}, {.97, .36}, {1.0, .31}, {1.0, .07}, {.50, .055}},
         {{{.04, .22}, {.04, .31}, {.26, .31}, {.26, .22}},
          {{.29, .22}, {.29, .31}, {.50, .31}, {.50, .22}},
          {{.53, .22}, {.53, .31}, {.74, .31}, {.74, .22}},
          {{.78, .18}, {.78, .31}, {.95, .31}, {.97, .18}}},
         .22,
         .78,
         .062,
         .19}};
    return shapes;
}

/// From a shape's units to the canvas.
struct VehicleView {
    double left, length, ground, tall, lean;
    bool to_the_left;

    CanvasPoint place(CanvasPoint p) const {
        const double x = to_the_left ? 1 - p.x : p.x;
        return {left + length * x, ground - length * tall * p.y + lean * length * (x - 0.5)};
    }
    Outline place(std::span<const CanvasPoint> outline) const {
        Outline placed;
        for (const CanvasPoint& p : outline) placed.push_back(place(p));
        return placed;
    }
};

double height_of(const VehicleShape& shape) {
    return std::max_element(shape.body.begin(), shape.body.end(), [](auto a, auto b) { return a.y < b.y; })->y;
}

VehicleView choose_view(const VehicleShape& shape, int width, int height, SplitMix& random) {
    VehicleView view{};
    view.tall = random.uniform(0.92, 1.15);
    const double room = 0.72 * height / (height_of(shape) * view.tall);
    view.length = std::min(random.uniform(0.48, 0.84) * width, room);
    view.left = random.uniform(0.04 * width, 0.96 * width - view.length);
    const double roof = height_of(shape) * view.tall * view.length;
    view.ground = random.uniform(std::max(0.55 * height, roof + 0.06 * height), 0.90 * height);
    view.lean = 0.012 * random.bell();
    view.to_the_left = random.below(2) == 0;
    return view;
}

void draw_wheel(Canvas& canvas, const VehicleView& view, double x, double radius, const CanvasColour& rim,
                SplitMix& random) {
    const CanvasPoint centre = view.place({x, radius});
    const double r = radius * view.length;
    const double rubber = random.uniform(18, 45);
    const auto disc = [&](double share, CanvasColour colour) {
        canvas.fill(ellipse_outline(centre, share * r, share * r * view.tall), [&](CanvasPoint p) {
            return (1 + 0.25 * (centre.y - p.y) / r) * colour;  // light shines from above
        });
    };
    disc(1, {rubber, rubber, rubber * 1.05});
    disc(0.66, rim);
    disc(0.52, 0.55 * rim);
    disc(0.22, rim);
}

}  // namespace

CanvasColour paint_colour(SplitMix& random) {
    static constexpr std::array<CanvasColour, 12> paints = {{{225, 225, 222},
                                                             {172, 176, 180},
                                                             {96, 100, 106},
                                                             {30, 31, 34},
                                                             {150, 28, 30},
                                                             {30, 58, 130},
                                                             {120, 150, 190},
                                                             {36, 84, 58},
                                                             {196, 150, 60},
                                                             {120, 86, 58},
                                                             {205, 196, 176},
                                                             {190, 92, 34}}};
    const CanvasColour base = paints[random.below(paints.size())];
    const double light = random.uniform(0.8, 1.2);
    return light * base + CanvasColour{10 * random.bell(), 10 * random.bell(), 10 * random.bell()};
}

VehiclePlace draw_vehicle(Canvas& canvas, int width, int height, SplitMix& random) {
    VehicleShape shape = vehicle_shapes()[random.below(vehicle_shapes().size())];
    for (CanvasPoint& p : shape.body) {
        p.x += 0.006 * random.bell();
        p.y += 0.005 * random.bell();
    }
    const VehicleView view = choose_view(shape, width, height, random);
    const CanvasColour paint = paint_colour(random);
    const double roof = height_of(shape);
    const double gloss = random.uniform(0.1, 0.5);
    const double glass = random.uniform(25, 110);
    const CanvasColour rim = random.uniform(90, 215) * CanvasColour{1, 1, 1.02};
    const auto height_at = [&](CanvasPoint p) { return (view.ground - p.y) / (view.length * view.tall); };

    const Outline body = smooth_outline(view.place(shape.body));
    canvas.fill(body, [&](CanvasPoint p) {
        const double up = height_at(p) / roof;
        const double away = (height_at(p) - shape.belt) / 0.03;  // from the edge that reflects the light
        const double shine = gloss / (1 + away * away);
        const double sky = up > 0.85 ? gloss * (up - 0.85) / 0.15 : 0;
        return (0.62 + 0.5 * up) * paint + (110 * (shine + sky)) * CanvasColour{1, 1, 1};
    });
    // the dark edge below the doors, arches, lights
    const double sill = random.uniform(0.085, 0.11);
    canvas.fill(view.place(Outline{{.05, .06}, {.05, sill}, {.95, sill}, {.95, .06}}),
                [&](CanvasPoint) { return 0.35 * paint; });
    for (const double x : {shape.rear_wheel, shape.front_wheel}) {
        const double r = 1.16 * shape.wheel_radius * view.length;
        canvas.fill(ellipse_outline(view.place({x, shape.wheel_radius}), r, 0.95 * r * view.tall), [&](CanvasPoint) {
            return CanvasColour{16, 16, 18};
        });
    }
    const double lamp = shape.belt - 0.05;
    canvas.fill(view.place(Outline{{.01, lamp}, {.015, lamp + .03}, {.05, lamp + .03}, {.05, lamp}}), [](CanvasPoint) {
        return CanvasColour{170, 24, 20};
    });
    canvas.fill(view.place(Outline{{.92, lamp - .02}, {.92, lamp + .005}, {.96, lamp}, {.975, lamp - .02}}),
                [](CanvasPoint) {
                    return CanvasColour{235, 235, 215};
                });

    const CanvasColour behind = {glass, glass * 1.04, glass * 1.1};
    for (const Outline& window : shape.windows)
        canvas.fill(view.place(window), [&](CanvasPoint p) {
            const double up = (height_at(p) - shape.belt) / (roof - shape.belt);
            const double streak = (p.x + 1.5 * p.y) / (0.16 * view.length);
            const double bright = streak - static_cast<double>(static_cast<long>(streak)) < 0.3 ? 28 : 0;
            return (0.7 + 0.7 * up) * behind + bright * CanvasColour{1, 1, 1};
        });
    // gaps between doors, handle, mirror
    for (const double x : {0.5 * (shape.rear_wheel + shape.front_wheel) - 0.08, shape.front_wheel - 0.14})
        canvas.fill(view.place(Outline{{x, sill}, {x - .004, shape.belt}, {x + .002, shape.belt}, {x + .006, sill}}),
                    [&](CanvasPoint) { return 0.45 * paint; });
    canvas.fill(ellipse_outline(view.place({shape.windows.back().back().x - 0.01, shape.belt + 0.012}),
                                0.022 * view.length, 0.016 * view.length),
                [&](CanvasPoint) { return 0.8 * paint; });
    for (const double x : {shape.rear_wheel, shape.front_wheel})
        draw_wheel(canvas, view, x, shape.wheel_radius, rim, random);
    return {view.left, view.length, view.ground, roof * view.tall * view.length};
}

}  // namespace samples
