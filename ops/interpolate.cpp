#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

constexpr const char* function_name = "interpolate";

/// Sizes and scale along one dimension.
struct Extent {
    std::int64_t in, out;
    std::optional<double> factor;  ///< as given
};

Extent extent_of(std::int64_t in, const std::optional<int>& size, const std::optional<double>& factor) {
    const auto scaled = std::floor(static_cast<double>(in) * factor.value_or(1));
    return {in, size ? *size : static_cast<std::int64_t>(scaled), factor};
}

bool is_nearest(InterpolateMode mode) {
    return mode == InterpolateMode::nearest || mode == InterpolateMode::nearest_exact;
}

/// Elements of x per element of the result, as in PyTorch.
double step_of(const InterpolateOptions& options, const Extent& extent) {
    if (options.align_corners)
        return extent.out > 1 ? static_cast<double>(extent.in - 1) / static_cast<double>(extent.out - 1) : 0;
    if (options.mode == InterpolateMode::nearest && (extent.in == extent.out || 2 * extent.in == extent.out))
        return extent.in == extent.out ? 1 : 0.5;
    return extent.factor ? 1 / *extent.factor : static_cast<double>(extent.in) / static_cast<double>(extent.out);
}

void check_options(const InterpolateOptions& options, const Tensor& x) {
    if (x.dims() < 3 || x.dims() > 5)
        throw InvalidArgument(
            fmt::format("{}: input has {} dimensions, {}; expected (N, C, L), (N, C, H, W) or "
                        "(N, C, D, H, W)",
                        function_name, x.dims(), x.shape().str()));
    if (options.size && options.scale_factor)
        throw InvalidArgument("interpolate: both size and scale_factor are given; expected one of them");
    if (!options.size && !options.scale_factor)
        throw InvalidArgument("interpolate: neither size nor scale_factor is given; expected one of them");
    const InterpolateMode mode = options.mode;
    const int dims = mode == InterpolateMode::linear                                         ? 3
                     : mode == InterpolateMode::bilinear || mode == InterpolateMode::bicubic ? 4
                     : mode == InterpolateMode::trilinear                                    ? 5
                                                                                             : x.dims();
    if (dims != x.dims())
        throw InvalidArgument(
            fmt::format("{}: input {} has {} dimensions, which this mode does not interpolate; expected linear for 3, "
                        "bilinear or bicubic for 4, and trilinear for 5",
                        function_name, x.shape().str(), x.dims()));
    if (options.align_corners && (is_nearest(mode) || mode == InterpolateMode::area))
        throw InvalidArgument(
            "interpolate: align_corners is set for a mode that does not interpolate; expected linear, bilinear, "
            "bicubic or trilinear");
    // Images of more than 2^20 pixels along a dimension are mistakes, and sizes would overflow.
    const auto usable = [](double factor) { return factor > 0 && factor <= 0x1p20; };
    const auto& scale = options.scale_factor;
    if (scale && !(usable(scale->d) && usable(scale->h) && usable(scale->w)))
        throw InvalidArgument(
            fmt::format("interpolate: invalid scale_factor ({}, {}, {}); expected positive numbers up to 2^20",
                        scale->d, scale->h, scale->w));
}

Tensor interpolated(const Tensor& x, const InterpolateGeometry& geometry, const TensorMeta& of_y);

Tensor interpolation_gradient(const Tensor& dy, const InterpolateGeometry& geometry, const TensorMeta& of_x) {
    const Tensor dx = apply_one(InterpolateBackward{geometry}, {dy}, of_x);
    if (needs_autograd({dy}))
        add_autograd_node("interpolate", {dy}, {dx},
                          BackwardFunction::composed([geometry, of_dy = like(dy)](const auto& gradients) {
                              return std::vector<Tensor>{interpolated(gradients[0], geometry, of_dy)};
                          }));
    return dx;
}

Tensor interpolated(const Tensor& x, const InterpolateGeometry& geometry, const TensorMeta& of_y) {
    const Tensor y = apply_one(InterpolateForward{geometry}, {x}, of_y);
    if (needs_autograd({x}))
        add_autograd_node("interpolate", {x}, {y},
                          BackwardFunction::composed([geometry, of_x = like(x)](const auto& gradients) {
                              return std::vector<Tensor>{interpolation_gradient(gradients[0], geometry, of_x)};
                          }));
    return y;
}

/// Images resized by one kernel.
Tensor resized_images(const Tensor& x, const InterpolateOptions& options, const Extent& rows, const Extent& columns) {
    const InterpolateGeometry geometry{is_nearest(options.mode), options.align_corners, step_of(options, rows),
                                       step_of(options, columns)};
    return interpolated(x, geometry, shaped(x, {x.size(0), x.size(1), rows.out, columns.out}, x.is_batch()));
}

Tensor selected(const Tensor& x, int dim, const std::vector<std::int64_t>& indices) {
    return index_select(x, dim, Tensor::from(indices, {std::ssize(indices)}, x.device()));
}

/// Elements of x along `dim`, chosen by nearest or nearest_exact.
Tensor nearest_along(const Tensor& x, int dim, const InterpolateOptions& options, const Extent& extent) {
    const double step = step_of(options, extent), middle = options.mode == InterpolateMode::nearest_exact ? 0.5 : 0;
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < extent.out; ++i) {
        const auto at = static_cast<std::int64_t>(std::floor((static_cast<double>(i) + middle) * step));
        indices.push_back(std::min(at, extent.in - 1));
    }
    return selected(x, dim, indices);
}

/// Weights of the elements around position `t`, 0 to 1, between the second and the third one: convolution with a = -3/4
/// (Keys 1981).
std::array<double, 4> cubic_weights(double t) {
    constexpr double a = -0.75;
    const auto near = [](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    return {far(t + 1), near(t), near(1 - t), far(2 - t)};
}

/// x interpolated along `dim`: a sum of elements times constants.
Tensor interpolated_along(const Tensor& x, int dim, const InterpolateOptions& options, const Extent& extent) {
    const bool cubic = options.mode == InterpolateMode::bicubic;
    const double step = step_of(options, extent);
    const std::size_t taps = cubic ? 4 : 2;
    std::vector<std::vector<std::int64_t>> indices(taps);
    std::vector<std::vector<double>> weights(taps);
    for (std::int64_t i = 0; i < extent.out; ++i) {
        double at = options.align_corners ? static_cast<double>(i) * step : (static_cast<double>(i) + 0.5) * step - 0.5;
        if (!cubic) at = std::max(at, 0.0);
        const double below = std::floor(at), t = at - below;
        const std::array<double, 4> all = cubic ? cubic_weights(t) : std::array<double, 4>{1 - t, t, 0, 0};
        for (std::size_t tap = 0; tap < taps; ++tap) {
            const auto index = static_cast<std::int64_t>(below) + static_cast<std::int64_t>(tap) - (cubic ? 1 : 0);
            indices[tap].push_back(std::clamp<std::int64_t>(index, 0, extent.in - 1));
            weights[tap].push_back(all[tap]);
        }
    }
    Shape line(std::vector<std::int64_t>(static_cast<std::size_t>(x.dims()), 1));
    line[dim] = extent.out;
    Tensor y;
    for (std::size_t tap = 0; tap < taps; ++tap) {
        const Tensor factors = Tensor::from(weights[tap], line, x.device()).to(x.dtype());
        const Tensor part = selected(x, dim, indices[tap]) * factors;
        y = y.defined() ? y + part : part;
    }
    return y;
}

/// Volumes: every slice as an image, and then along the depth.
Tensor resized_volumes(const Tensor& x, const InterpolateOptions& options, const std::array<Extent, 3>& extents) {
    InterpolateOptions of_images = options;
    if (options.mode == InterpolateMode::trilinear) of_images.mode = InterpolateMode::bilinear;
    const Tensor images = x.reshape({x.size(0), x.size(1) * x.size(2), x.size(3), x.size(4)});
    const Tensor resized = resized_images(images, of_images, extents[1], extents[2])
                               .reshape({x.size(0), x.size(1), x.size(2), extents[1].out, extents[2].out});
    if (is_nearest(options.mode)) return nearest_along(resized, 2, options, extents[0]);
    return interpolated_along(resized, 2, options, extents[0]);
}

}  // namespace

Tensor interpolate(const Tensor& given, const InterpolateOptions& options) {
    const CheckedArgs call(function_name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    check_options(options, x);
    if (x.dims() == 3) {
        InterpolateOptions of_images = options;
        if (options.size) of_images.size->h = 1;
        if (options.scale_factor) of_images.scale_factor->h = 1;
        if (options.mode == InterpolateMode::linear) of_images.mode = InterpolateMode::bilinear;
        return interpolate(x.unsqueeze(2), of_images).squeeze(2);
    }
    std::array<Extent, 3> extents{Extent{1, 1, std::nullopt}};
    const auto& size = options.size;
    const auto& scale = options.scale_factor;
    using Size = std::optional<int>;
    using Factor = std::optional<double>;
    if (x.dims() == 5)
        extents[0] = extent_of(x.size(2), size ? Size(size->d) : Size(), scale ? Factor(scale->d) : Factor());
    extents[1] = extent_of(x.size(-2), size ? Size(size->h) : Size(), scale ? Factor(scale->h) : Factor());
    extents[2] = extent_of(x.size(-1), size ? Size(size->w) : Size(), scale ? Factor(scale->w) : Factor());
    const std::int64_t depth = extents[0].out, height = extents[1].out, width = extents[2].out;
    for (const Extent& extent : extents)
        if (extent.in < 1 || extent.out < 1)
            throw InvalidArgument(fmt::format(
                "interpolate: input {} and size {}; expected at least one element along every dimension",
                x.shape().str(), (x.dims() == 5 ? Shape{depth, height, width} : Shape{height, width}).str()));
    const auto out = [&](int dim) { return static_cast<int>(extents[static_cast<std::size_t>(dim)].out); };
    switch (options.mode) {
        case InterpolateMode::area:
            return x.dims() == 5 ? adaptive_avg_pool3d(x, {out(0), out(1), out(2)})
                                 : adaptive_avg_pool2d(x, {out(1), out(2)});
        case InterpolateMode::nearest_exact: {
            Tensor y = x;
            for (int dim = 5 - x.dims(); dim < 3; ++dim)
                y = nearest_along(y, dim + x.dims() - 3, options, extents[static_cast<std::size_t>(dim)]);
            return y;
        }
        case InterpolateMode::bicubic: {
            const Tensor rows = interpolated_along(widened(x), 2, options, extents[1]);
            return interpolated_along(rows, 3, options, extents[2]).to(x.dtype());
        }
        default: break;
    }
    if (x.dims() == 4) return resized_images(x, options, extents[1], extents[2]);
    return resized_volumes(widened(x), options, extents).to(x.dtype());
}

}  // namespace lockstep
