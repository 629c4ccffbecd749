#include <fmt/format.h>

#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Size of the result along a dimension.
std::int64_t result_size(std::int64_t in, const std::optional<int>& size, const std::optional<double>& factor) {
    return size ? *size : static_cast<std::int64_t>(std::floor(static_cast<double>(in) * factor.value_or(1)));
}

/// Elements of x per element of the result, as in PyTorch.
double step_of(const InterpolateOptions& options, std::int64_t in, std::int64_t out,
               const std::optional<double>& factor) {
    if (options.mode == InterpolateMode::bilinear && options.align_corners)
        return out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
    if (options.mode == InterpolateMode::nearest && (in == out || 2 * in == out)) return in == out ? 1 : 0.5;
    return factor ? 1 / *factor : static_cast<double>(in) / static_cast<double>(out);
}

void check_options(const InterpolateOptions& options) {
    if (options.size && options.scale_factor)
        throw InvalidArgument("interpolate: only one of size or scale_factor should be defined; expected exactly one");
    if (!options.size && !options.scale_factor)
        throw InvalidArgument("interpolate: either size or scale_factor should be defined; expected exactly one");
    if (options.align_corners && options.mode == InterpolateMode::nearest)
        throw InvalidArgument(
            "interpolate: align_corners option can only be set with the interpolating modes; expected "
            "InterpolateMode::bilinear");
    // Images of more than 2^20 pixels along a dimension are mistakes, and sizes would overflow.
    const auto usable = [](double factor) { return factor > 0 && factor <= 0x1p20; };
    if (options.scale_factor && !(usable(options.scale_factor->h) && usable(options.scale_factor->w)))
        throw InvalidArgument(
            fmt::format("interpolate: invalid scale_factor ({}, {}); expected positive numbers up to 2^20",
                        options.scale_factor->h, options.scale_factor->w));
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

}  // namespace

Tensor interpolate(const Tensor& given, const InterpolateOptions& options) {
    constexpr const char* name = "interpolate";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    check_options(options);
    std::optional<int> size_h, size_w;
    std::optional<double> factor_h, factor_w;
    if (options.size) {
        size_h = options.size->h;
        size_w = options.size->w;
    } else {
        factor_h = options.scale_factor->h;
        factor_w = options.scale_factor->w;
    }
    const Shape shape{x.size(0), x.size(1), result_size(x.size(2), size_h, factor_h),
                      result_size(x.size(3), size_w, factor_w)};
    if (x.size(2) < 1 || x.size(3) < 1 || shape[2] < 1 || shape[3] < 1)
        throw InvalidArgument(
            fmt::format("interpolate: input and output sizes should be greater than 0, but got input (H: {}, W: {}) "
                        "output (H: {}, W: {}); expected a larger size or scale_factor",
                        x.size(2), x.size(3), shape[2], shape[3]));
    const InterpolateGeometry geometry{options.mode == InterpolateMode::nearest, options.align_corners,
                                       step_of(options, x.size(2), shape[2], factor_h),
                                       step_of(options, x.size(3), shape[3], factor_w)};
    return interpolated(x, geometry, shaped(x, shape, x.is_batch()));
}

}  // namespace lockstep
