#include "lockstep/samples/data/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/idx.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/data/digit_shapes.h"
#include "lockstep/samples/data/split_mix.h"

namespace samples {
namespace {

constexpr int side = static_cast<int>(digit_side);
constexpr std::size_t image_bytes = digit_side * digit_side;

/// A short piece of a stroke in pixels, with the pen's radius at both ends.
struct Piece {
    PenPoint from, to;
    double radius_from, radius_to;
};

/// The variations of one hand, applied to every point of a drawing.
struct Hand {
    double scale_x, scale_y, slant, sine, cosine, shift_x, shift_y;

    explicit Hand(SplitMix& random) {
        const double size = random.uniform(20, 21);  // in pixels, of 28
        scale_y = size;
        scale_x = size * random.uniform(0.72, 1.12);
        slant = 0.07 * random.bell() + 0.08;  // most hands lean to the right
        // sin and cos of the mathematical library differ in their last bits between machines; at these angles a few
        // terms are exact enough
        const double angle = 0.06 * random.bell();
        const double square = angle * angle;
        sine = angle * (1 - square / 6 * (1 - square / 20));
        cosine = 1 - square / 2 * (1 - square / 12);
        shift_x = 0.4 * random.bell();
        shift_y = 0.32 * random.bell();
        // Some write large in the middle, some small towards a corner. A linear classifier has one template for all
        // places and fails; a network learns the places one by one, so the set is hard only for the linear classifier.
        const std::size_t spot = random.below(5);
        if (spot > 0) {
            scale_x *= 0.8;
            scale_y *= 0.8;
            shift_x += spot % 2 != 0 ? 3 : -3;
            shift_y += spot / 2 % 2 != 0 ? 3 : -3;
        }
    }

    PenPoint place(PenPoint p) const {
        const double x = (p.x - 0.5) * scale_x - slant * (p.y - 0.5) * scale_y;
        const double y = (p.y - 0.5) * scale_y;
        return {cosine * x - sine * y + shift_x + 0.5 * side, sine * x + cosine * y + shift_y + 0.5 * side};
    }
};

/// Catmull-Rom spline from p1 to p2 at t in [0, 1].
double spline(double p0, double p1, double p2, double p3, double t) {
    return p1 + 0.5 * t * ((p2 - p0) + t * ((2 * p0 - 5 * p1 + 4 * p2 - p3) + t * (3 * (p1 - p2) + p3 - p0)));
}

std::vector<Piece> draw_strokes(const DigitShape& shape, SplitMix& random) {
    const double unsteadiness = random.uniform(0.02, 0.03);
    const double pen = random.uniform(1.1, 1.9);  // radius in pixels
    const double pressure = random.uniform(0.0, 0.3);
    const Hand hand(random);

    std::vector<PenPoint> points;
    std::vector<double> radii;
    for (const PenPoint& point : shape.points) {
        const double dx = unsteadiness * random.bell();
        const double dy = unsteadiness * random.bell();
        points.push_back(hand.place({point.x + dx, point.y + dy}));
        radii.push_back(std::max(0.5, pen * (1 + pressure * random.bell())));
    }

    constexpr int pieces_per_span = 8;
    std::vector<Piece> pieces;
    for (const std::vector<int>& stroke : shape.strokes) {
        const auto at = [&](std::size_t i) { return static_cast<std::size_t>(stroke[i]); };
        for (std::size_t i = 0; i + 1 < stroke.size(); ++i) {
            const std::size_t a = at(i > 0 ? i - 1 : i), b = at(i), c = at(i + 1);
            const std::size_t d = at(i + 2 < stroke.size() ? i + 2 : i + 1);
            PenPoint last = points[b];
            for (int k = 1; k <= pieces_per_span; ++k) {
                const double t = static_cast<double>(k) / pieces_per_span;
                const double before = static_cast<double>(k - 1) / pieces_per_span;
                const PenPoint next = {spline(points[a].x, points[b].x, points[c].x, points[d].x, t),
                                       spline(points[a].y, points[b].y, points[c].y, points[d].y, t)};
                pieces.push_back(
                    {last, next, radii[b] + (radii[c] - radii[b]) * before, radii[b] + (radii[c] - radii[b]) * t});
                last = next;
            }
        }
    }
    return pieces;
}

using Ink = std::array<double, image_bytes>;  // 0 is paper, 1 is ink

/// Every pixel gets the darkest ink of all pieces; edges fade over `softness` pixels.
Ink lay_ink(const std::vector<Piece>& pieces, double softness) {
    Ink ink{};
    for (const Piece& piece : pieces) {
        const double reach = std::max(piece.radius_from, piece.radius_to) + softness;
        const auto first = [&](double a, double b) {
            return static_cast<int>(std::clamp(std::floor(std::min(a, b) - reach), 0.0, static_cast<double>(side)));
        };
        const auto last = [&](double a, double b) {
            return static_cast<int>(std::clamp(std::ceil(std::max(a, b) + reach), 0.0, static_cast<double>(side)));
        };
        const double dx = piece.to.x - piece.from.x;
        const double dy = piece.to.y - piece.from.y;
        const double length_squared = std::max(dx * dx + dy * dy, 1e-12);
        for (int y = first(piece.from.y, piece.to.y); y < last(piece.from.y, piece.to.y); ++y) {
            for (int x = first(piece.from.x, piece.to.x); x < last(piece.from.x, piece.to.x); ++x) {
                const double px = x + 0.5 - piece.from.x;
                const double py = y + 0.5 - piece.from.y;
                const double t = std::clamp((px * dx + py * dy) / length_squared, 0.0, 1.0);
                const double ex = px - t * dx;
                const double ey = py - t * dy;
                const double radius = piece.radius_from + t * (piece.radius_to - piece.radius_from);
                const double inside = (radius - std::sqrt(ex * ex + ey * ey)) / softness + 0.5;
                double& pixel = ink[static_cast<std::size_t>(y * side + x)];
                pixel = std::max(pixel, std::clamp(inside, 0.0, 1.0));
            }
        }
    }
    return ink;
}

}  // namespace

void render_digit(int digit, std::uint64_t seed, std::uint64_t index, std::span<std::uint8_t> pixels) {
    if (digit < 0 || digit > 9) {
        throw lockstep::InvalidArgument("render_digit: digit is " + std::to_string(digit) + "; expected 0 to 9");
    }
    if (pixels.size() != image_bytes) {
        throw lockstep::InvalidArgument("render_digit: pixels holds " + std::to_string(pixels.size()) +
                                        " bytes; expected 784");
    }
    SplitMix random(seed, index, static_cast<std::uint64_t>(digit) + 1);
    const std::span<const DigitShape> shapes = digit_shapes(digit);
    const DigitShape& shape = shapes[random.below(shapes.size())];
    const std::vector<Piece> pieces = draw_strokes(shape, random);
    const Ink ink = lay_ink(pieces, random.uniform(0.7, 1.3));

    const double darkness = random.uniform(240, 290);
    const double grain = random.uniform(0, 10);
    for (std::size_t i = 0; i < image_bytes; ++i) {
        const double value = darkness * ink[i] + grain * random.bell();
        pixels[i] = static_cast<std::uint8_t>(std::clamp(value + 0.5, 0.0, 255.0));
    }
}

void write_digits(const std::filesystem::path& directory, const DigitsOptions& options) {
    for (const std::int64_t count : {options.train_count, options.test_count}) {
        if (count < 1 || count > 100'000'000) {
            throw lockstep::InvalidArgument("write_digits: count is " + std::to_string(count) +
                                            "; expected 1 to 100000000 images");
        }
    }
    lockstep::make_directories(directory);
    const auto write_part = [&](const std::string& part, std::int64_t count, std::uint64_t first_index) {
        std::vector<std::uint8_t> images(static_cast<std::size_t>(count) * image_bytes);
        std::vector<std::uint8_t> labels(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < labels.size(); ++i) {
            const std::uint64_t index = first_index + i;
            labels[i] = static_cast<std::uint8_t>(SplitMix(options.seed, index, 0).below(10));
            render_digit(labels[i], options.seed, index, std::span(images).subspan(i * image_bytes, image_bytes));
        }
        const std::string suffix = options.gzip ? ".gz" : "";
        const lockstep::IdxCompression compression =
            options.gzip ? lockstep::IdxCompression::gzip : lockstep::IdxCompression::none;
        lockstep::write_idx(directory / (part + "-images-idx3-ubyte" + suffix), lockstep::DType::u8,
                            std::array<std::int64_t, 3>{count, side, side}, std::as_bytes(std::span(images)),
                            compression);
        lockstep::write_idx(directory / (part + "-labels-idx1-ubyte" + suffix), lockstep::DType::u8,
                            std::array<std::int64_t, 1>{count}, std::as_bytes(std::span(labels)), compression);
    };
    // far beyond any training image
    constexpr std::uint64_t first_test_index = std::uint64_t{1} << 40;
    write_part("train", options.train_count, 0);
    write_part("t10k", options.test_count, first_test_index);
}

}  // namespace samples
