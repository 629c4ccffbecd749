// Images at the points of a grid, and rarer forms of interpolation, in the op table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/tests/ops/function_op.h"

namespace lockstep::test {

namespace {

/// The coordinate in the image of a coordinate that is outside of it, by its definition: mirrored until it is inside.
double mirrored(double at, double low, double high) {
    if (low == high) return 0;
    while (at < low || at > high) at = at < low ? 2 * low - at : 2 * high - at;
    return at;
}

double place(double coordinate, std::ptrdiff_t size, const GridSampleOptions& options) {
    const auto count = static_cast<double>(size);
    double at = options.align_corners ? (coordinate + 1) / 2 * (count - 1) : ((coordinate + 1) * count - 1) / 2;
    if (options.padding_mode == GridSamplePadding::reflection)
        at = options.align_corners ? mirrored(at, 0, count - 1) : mirrored(at, -0.5, count - 0.5);
    return options.padding_mode == GridSamplePadding::zeros ? at : std::clamp(at, 0.0, count - 1);
}

Array sampled(const Array& x, const Array& grid, const GridSampleOptions& options) {
    const std::ptrdiff_t channels = x.shape[1], height = x.shape[2], width = x.shape[3];
    const std::ptrdiff_t points = grid.shape[1] * grid.shape[2];
    Array y(Sizes{x.shape[0], channels, grid.shape[1], grid.shape[2]});
    for (std::ptrdiff_t n = 0; n < x.shape[0]; ++n)
        for (std::ptrdiff_t c = 0; c < channels; ++c)
            for (std::ptrdiff_t point = 0; point < points; ++point) {
                const double column = place(grid[(n * points + point) * 2], width, options);
                const double row = place(grid[(n * points + point) * 2 + 1], height, options);
                double sum = 0;
                for (std::ptrdiff_t i = 0; i < height; ++i)
                    for (std::ptrdiff_t j = 0; j < width; ++j) {
                        const double near = options.mode == InterpolateMode::nearest
                                                ? (std::nearbyint(row) == static_cast<double>(i) &&
                                                   std::nearbyint(column) == static_cast<double>(j))
                                                : std::max(0.0, 1 - std::abs(row - static_cast<double>(i))) *
                                                      std::max(0.0, 1 - std::abs(column - static_cast<double>(j)));
                        sum += near * x[((n * channels + c) * height + i) * width + j];
                    }
                y[(n * channels + c) * points + point] = sum;
            }
    return y;
}

void add_grid_samples(Table& table) {
    const char* const paddings[] = {"zeros", "border", "reflection"};
    for (const bool nearest : {false, true})
        for (const bool corners : {false, true})
            for (int padding = 0; padding < 3; ++padding) {
                const GridSampleOptions options{nearest ? InterpolateMode::nearest : InterpolateMode::bilinear,
                                                static_cast<GridSamplePadding>(padding), corners};
                Input grid{{2, 3, 5, 2}};
                grid.gradient = !nearest;
                FunctionOp& added = add_function(
                    table,
                    fmt::format("F.grid_sample(a, b, mode='{}', padding_mode='{}', align_corners={})",
                                nearest ? "nearest" : "bilinear", paddings[padding], corners ? "True" : "False"),
                    {{{2, 2, 4, 3}}, grid}, [options](const auto& in) { return grid_sample(in[0], in[1], options); },
                    [options](const std::vector<Array>& in) { return sampled(in[0], in[1], options); });
                added.error = 1e-5;
                added.batch_inputs = {true, true};
            }
    for (const bool corners : {false, true})
        add_function(
            table, fmt::format("F.affine_grid(a, (2, 1, 3, 4), align_corners={})", corners ? "True" : "False"),
            {{{2, 2, 3}}},
            [corners](const auto& in) {
                return affine_grid(in[0], {2, 1, 3, 4}, corners);
            },
            [corners](const std::vector<Array>& in) {
                Array y(Sizes{2, 3, 4, 2});
                const auto at = [corners](std::ptrdiff_t i, double count) {
                    const auto k = static_cast<double>(i);
                    return corners ? -1 + 2 * k / (count - 1) : -1 + (2 * k + 1) / count;
                };
                for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
                    const double* const row = &in[0].v[static_cast<std::size_t>(i / 24 * 6 + i % 2 * 3)];
                    y[i] = row[0] * at(i / 2 % 4, 4) + row[1] * at(i / 8 % 3, 3) + row[2];
                }
                return y;
            });
}

double tap(InterpolateMode mode, double distance) {
    const double d = std::abs(distance);
    if (mode != InterpolateMode::bicubic) return std::max(0.0, 1 - d);
    if (d < 1) return (1.25 * d - 2.25) * d * d + 1;
    return d < 2 ? ((-0.75 * d + 3.75) * d - 6) * d + 3 : 0;
}

/// x resized along one dimension; `factor`: 0 if the size is given.
Array resized(const Array& x, std::size_t dim, std::ptrdiff_t out, double factor, InterpolateMode mode, bool corners) {
    std::ptrdiff_t inner = 1;
    for (std::size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
    const std::ptrdiff_t in = x.shape[dim];
    Sizes shape = x.shape;
    shape[dim] = out;
    Array y(shape);
    const double ratio = factor > 0 ? 1 / factor : static_cast<double>(in) / static_cast<double>(out);
    for (std::ptrdiff_t i = 0; i < y.size(); ++i) {
        const std::ptrdiff_t outer = i / inner / out, place_out = i / inner % out;
        const auto o = static_cast<double>(place_out);
        const auto element = [&](std::ptrdiff_t k) { return x[(outer * in + k) * inner + i % inner]; };
        if (mode == InterpolateMode::area) {
            const std::ptrdiff_t begin = place_out * in / out, end = ((place_out + 1) * in + out - 1) / out;
            for (std::ptrdiff_t k = begin; k < end; ++k) y[i] += element(k) / static_cast<double>(end - begin);
        } else if (mode == InterpolateMode::nearest || mode == InterpolateMode::nearest_exact) {
            const double at = (o + (mode == InterpolateMode::nearest ? 0 : 0.5)) * ratio;
            y[i] = element(std::min(static_cast<std::ptrdiff_t>(std::floor(at + 1e-9)), in - 1));
        } else {
            double at = corners ? (out > 1 ? o * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0)
                                : (o + 0.5) * ratio - 0.5;
            if (mode != InterpolateMode::bicubic) at = std::max(at, 0.0);
            const auto below = static_cast<std::ptrdiff_t>(std::floor(at));
            for (std::ptrdiff_t k = below - 1; k <= below + 2; ++k)
                y[i] += tap(mode, at - static_cast<double>(k)) * element(std::clamp<std::ptrdiff_t>(k, 0, in - 1));
        }
    }
    return y;
}

struct ResizeCase {
    Sizes shape;
    Sizes size;  ///< empty: the factor
    double factor;
    InterpolateMode mode;
    const char* name;
    bool corners;
};

void add_resize(Table& table, const ResizeCase& c) {
    InterpolateOptions options{.mode = c.mode, .align_corners = c.corners};
    std::string arguments = fmt::format("scale_factor={}", c.factor);
    if (!c.size.empty()) {
        const auto part = [&](std::size_t i) { return static_cast<int>(c.size[i]); };
        arguments = "size=(";
        for (const std::ptrdiff_t one : c.size) arguments += fmt::format("{},", one);
        arguments += ")";
        options.size = c.size.size() == 1   ? InterpolateSize(part(0))
                       : c.size.size() == 2 ? InterpolateSize(part(0), part(1))
                                            : InterpolateSize(part(0), part(1), part(2));
    } else {
        options.scale_factor = ScaleFactor(c.factor);
    }
    arguments += fmt::format(", mode='{}'", c.name);
    if (c.corners) arguments += ", align_corners=True";
    add_function(
        table, "F.interpolate(a, " + arguments + ")", {{c.shape}},
        [options](const auto& in) { return interpolate(in[0], options); },
        [c](const std::vector<Array>& in) {
            Array y = in[0];
            for (std::size_t dim = 2; dim < c.shape.size(); ++dim) {
                const auto scaled = std::floor(static_cast<double>(c.shape[dim]) * c.factor);
                const std::ptrdiff_t out = c.size.empty() ? static_cast<std::ptrdiff_t>(scaled) : c.size[dim - 2];
                y = resized(y, dim, out, c.size.empty() ? c.factor : 0, c.mode, c.corners);
            }
            return y;
        });
}

}  // namespace

void add_sampling(Table& table) {
    add_grid_samples(table);
    const Sizes line{2, 3, 7}, image{2, 2, 5, 4}, volume{1, 2, 3, 4, 2};
    for (const bool corners : {false, true}) {
        add_resize(table, {line, {11}, 0, InterpolateMode::linear, "linear", corners});
        add_resize(table, {line, {}, 0.6, InterpolateMode::linear, "linear", corners});
        add_resize(table, {image, {8, 3}, 0, InterpolateMode::bicubic, "bicubic", corners});
        add_resize(table, {image, {}, 1.7, InterpolateMode::bicubic, "bicubic", corners});
        add_resize(table, {volume, {5, 3, 4}, 0, InterpolateMode::trilinear, "trilinear", corners});
        add_resize(table, {volume, {}, 2, InterpolateMode::trilinear, "trilinear", corners});
    }
    for (const Sizes& shape : {line, image, volume}) {
        const Sizes size(shape.size() - 2, 5);
        add_resize(table, {shape, size, 0, InterpolateMode::area, "area", false});
        add_resize(table, {shape, size, 0, InterpolateMode::nearest_exact, "nearest-exact", false});
        add_resize(table, {shape, {}, 1.6, InterpolateMode::nearest_exact, "nearest-exact", false});
    }
    add_resize(table, {line, {4}, 0, InterpolateMode::nearest, "nearest", false});
    add_resize(table, {volume, {2, 9, 3}, 0, InterpolateMode::nearest, "nearest", false});
}

}  // namespace lockstep::test
