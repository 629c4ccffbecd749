#include "lockstep/samples/data/scenery.h"

#include <algorithm>
#include <cmath>

namespace samples {
namespace {

/// Smooth noise between -1 and 1: random values on a grid, interpolated; three octaves.
class Texture {
public:
    /// Grains are `grain_x` x `grain_y` pixels.
    Texture(SplitMix& random, double grain_x, double grain_y)
        : key_(random.bits()), grain_x_(grain_x), grain_y_(grain_y) {}

    double at(double x, double y) const {
        double sum = 0, weight = 0.57;
        x /= grain_x_;
        y /= grain_y_;
        for (std::uint64_t octave = 0; octave < 3; ++octave) {
            sum += weight * smooth(x, y, octave);
            weight *= 0.5;
            x *= 2.03;
            y *= 2.03;
        }
        return sum;
    }

private:
    double corner(std::int64_t x, std::int64_t y, std::uint64_t octave) const {
        std::uint64_t z = key_ + octave * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(x) * 0xd1b54a32d192ed03u +
                          static_cast<std::uint64_t>(y) * 0xabc98388fb8fac03u;
        z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
        z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
        return static_cast<double>(z >> 11) * 0x1p-52 - 1;
    }
    double smooth(double x, double y, std::uint64_t octave) const {
        const double left = std::floor(x), top = std::floor(y);
        const auto ix = static_cast<std::int64_t>(left), iy = static_cast<std::int64_t>(top);
        const auto ease = [](double t) { return t * t * (3 - 2 * t); };
        const double tx = ease(x - left), ty = ease(y - top);
        const double upper = corner(ix, iy, octave) + tx * (corner(ix + 1, iy, octave) - corner(ix, iy, octave));
        const double lower =
            corner(ix, iy + 1, octave) + tx * (corner(ix + 1, iy + 1, octave) - corner(ix, iy + 1, octave));
        return upper + ty * (lower - upper);
    }

    std::uint64_t key_;
    double grain_x_, grain_y_;
};

/// Grey with a touch of colour.
CanvasColour plain_colour(SplitMix& random, double darkest, double lightest) {
    const double level = random.uniform(darkest, lightest);
    return {level * (1 + 0.08 * random.bell()), level * (1 + 0.05 * random.bell()), level * (1 + 0.08 * random.bell())};
}

/// A poster, a door, a cupboard, a bush: some in the colours of vehicles.
struct Thing {
    double left, right, top, bottom;
    bool round;
    CanvasColour colour;
    double strength;

    bool covers(double x, double y) const {
        if (x < left || x > right || y < top || y > bottom) return false;
        if (!round) return true;
        const double dx = 2 * (x - left) / (right - left) - 1, dy = 2 * (y - top) / (bottom - top) - 1;
        return dx * dx + dy * dy < 1;
    }
};

std::vector<Thing> things_behind(int width, int height, double horizon, SplitMix& random) {
    std::vector<Thing> things(2 + random.below(6));
    for (Thing& thing : things) {
        const double wide = random.uniform(0.03, 0.28) * width, tall = random.uniform(0.06, 0.45) * height;
        thing.left = random.uniform(-0.1, 1) * width;
        thing.right = thing.left + wide;
        // on the floor, or on the wall
        thing.bottom = random.below(2) == 0 ? horizon + 0.02 * height : random.uniform(0.2, 0.95) * horizon;
        thing.top = thing.bottom - tall;
        thing.round = random.below(3) == 0;
        thing.colour = random.below(2) == 0 ? paint_colour(random) : plain_colour(random, 30, 220);
        thing.strength = random.uniform(0.25, 0.95);
    }
    return things;
}

/// Lines and joints on the floor.
struct Stripes {
    double period, share, slope, strength;
    bool on(double x, double y) const {
        const double at = (y + slope * x) / period;
        return at - std::floor(at) < share;
    }
};

}  // namespace

std::vector<CanvasColour> draw_scenery(int width, int height, const VehiclePlace& vehicle, SplitMix& random) {
    const double horizon = vehicle.ground - random.uniform(0.05, 0.30) * height;
    const CanvasColour wall = plain_colour(random, 60, 225), floor = plain_colour(random, 50, 200);
    const double coarse = random.uniform(0.03, 0.15) * width, fine = random.uniform(0.008, 0.03) * width;
    const Texture wall_texture(random, coarse, coarse), floor_texture(random, 2.5 * coarse, 0.6 * coarse);
    const Texture grain(random, fine, fine);
    const double wall_depth = random.uniform(4, 30), floor_depth = random.uniform(4, 30),
                 grain_depth = random.uniform(2, 14);
    const double slant = 0.25 * random.bell();  // light shines from one side
    const Stripes stripes{random.uniform(0.08, 0.3) * height, random.uniform(0.02, 0.15), 0.4 * random.bell(),
                          random.below(2) == 0 ? random.uniform(10, 60) : 0};
    const std::vector<Thing> things = things_behind(width, height, horizon, random);

    std::vector<CanvasColour> picture(static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            const double fx = x + 0.5, fy = y + 0.5;
            const bool on_wall = fy < horizon;
            CanvasColour colour = on_wall ? wall : floor;
            double level = on_wall ? wall_depth * wall_texture.at(fx, fy) : floor_depth * floor_texture.at(fx, fy);
            if (!on_wall && stripes.on(fx, fy)) level += stripes.strength;
            if (!on_wall)
                level -= 25 * std::max(0.0, 1 - (fy - horizon) / (0.03 * height));  // at the edge between wall and
                                                                                    // floor
            for (const Thing& thing : things)
                if (thing.covers(fx, fy)) colour = (1 - thing.strength) * colour + thing.strength * thing.colour;
            level += grain_depth * grain.at(fx, fy);
            const double light = 1 + slant * (fx / width - 0.5) + 0.12 * (on_wall ? fy / horizon - 0.5 : 0.0);
            picture[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)] =
                light * (colour + level * CanvasColour{1, 1, 1});
        }
    return picture;
}

void cast_shadow(std::vector<CanvasColour>& picture, int width, int height, const VehiclePlace& vehicle,
                 SplitMix& random) {
    const double depth = random.uniform(0.3, 0.75);
    const double reach = random.uniform(0.52, 0.66) * vehicle.length;
    const double middle = vehicle.left + (0.5 + 0.08 * random.bell()) * vehicle.length;
    const double thick = random.uniform(0.035, 0.09) * vehicle.length;
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            const double dx = (x + 0.5 - middle) / reach, dy = (y + 0.5 - vehicle.ground) / thick;
            const double inside = 1 - (dx * dx + dy * dy);
            if (inside <= 0) continue;
            const double soft = std::min(1.0, 1.8 * inside);
            CanvasColour& pixel =
                picture[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)];
            pixel = (1 - depth * soft * soft * (3 - 2 * soft)) * pixel;
        }
}

void mirror_in_floor(std::vector<CanvasColour>& picture, int width, int height, const Canvas& canvas,
                     const VehiclePlace& vehicle, SplitMix& random) {
    const double strength = random.below(3) == 0 ? 0 : random.uniform(0.08, 0.4);
    const double fades = random.uniform(0.3, 1.2) * vehicle.height;
    const int line = static_cast<int>(vehicle.ground);
    for (int y = line; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            const Canvas::Pixel above = canvas.pixel(x, 2 * line - y - 1);
            const double share = strength * above.cover * std::max(0.0, 1 - (y - line) / fades);
            CanvasColour& pixel =
                picture[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)];
            pixel = (1 - share) * pixel + share * above.colour;
        }
}

}  // namespace samples
