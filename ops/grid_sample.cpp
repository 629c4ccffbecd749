// Images sampled at the points of a grid. Made of gathers and arithmetic, in f32 for 16-bit inputs.
#include <fmt/format.h>

#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// `x` reflected at `low` and `high` until it is between them.
Tensor reflected(const Tensor& x, double low, double high) {
    if (low == high) return zeros_like(x);
    const double span = high - low;
    const Tensor distance = abs(x - low), rest = fmod(distance, span);
    const Tensor turns = floor(distance.detach() / span);
    return where(eq(fmod(turns, 2.0), 0), rest + low, high - rest);
}

/// Coordinates in [-1, 1] as positions of elements along a dimension of `size`.
Tensor element_positions(const Tensor& x, std::int64_t size, const GridSampleOptions& options) {
    const auto count = static_cast<double>(size);
    Tensor at = options.align_corners ? (x + 1) * ((count - 1) / 2) : ((x + 1) * count - 1) / 2;
    if (options.padding_mode == GridSamplePadding::reflection)
        at = options.align_corners ? reflected(at, 0, count - 1) : reflected(at, -0.5, count - 0.5);
    if (options.padding_mode != GridSamplePadding::zeros) at = clamp(at, 0.0, count - 1);
    return at;
}

/// Elements of x (N, C, H, W) at whole positions (N, Y, X): (N, C, Y, X); 0 outside of the image.
Tensor elements(const Tensor& x, const Tensor& row, const Tensor& column) {
    const auto height = static_cast<double>(x.size(2)), width = static_cast<double>(x.size(3));
    const auto within = [](const Tensor& at, double size) { return logical_and(at >= 0, at <= size - 1); };
    const Tensor inside = logical_and(within(row, height), within(column, width));
    const std::int64_t points = row.size(1) * row.size(2);
    const Tensor index = where(inside, row.to(DType::i64) * x.size(3) + column.to(DType::i64), 0);
    const Shape lines{x.size(0), x.size(1), points};
    const Tensor each = tagged(index.reshape({x.size(0), 1, points}).expand(lines), index.is_batch() || x.is_batch());
    const Tensor found = gather(x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3)}), 2, each);
    return masked_fill(found.reshape({x.size(0), x.size(1), row.size(1), row.size(2)}),
                       logical_not(inside).unsqueeze(1), 0);
}

}  // namespace

Tensor grid_sample(const Tensor& given, const Tensor& given_grid, const GridSampleOptions& options) {
    constexpr const char* name = "grid_sample";
    const CheckedArgs call(name, {arg::floating("input", given), arg::floating("grid", given_grid)});
    checks::dims(name, "input", call[0], 4, "(N, C, H, W)");
    checks::dims(name, "grid", call[1], 4, "(N, Y, X, 2)");
    const Tensor x = widened(call[0]), grid = widened(call[1]);
    if (grid.size(3) != 2 || grid.size(0) != x.size(0))
        throw InvalidArgument(fmt::format("{}: grid {} for input {}; expected (N, Y, X, 2) with N = {}", name,
                                          grid.shape().str(), x.shape().str(), x.size(0)));
    if (x.size(2) < 1 || x.size(3) < 1)
        throw InvalidArgument(fmt::format("{}: input {} has no pixels; expected at least one", name, x.shape().str()));
    const Tensor column = element_positions(grid.select(3, 0), x.size(3), options);
    const Tensor row = element_positions(grid.select(3, 1), x.size(2), options);
    if (options.mode == InterpolateMode::nearest)
        return elements(x, round(row.detach()), round(column.detach())).to(call[0].dtype());
    if (options.mode != InterpolateMode::bilinear)
        throw InvalidArgument(fmt::format("{}: invalid mode; expected bilinear or nearest", name));
    const Tensor top = floor(row.detach()), left = floor(column.detach());
    const Tensor below = (row - top).unsqueeze(1), right = (column - left).unsqueeze(1);  // weights
    const Tensor upper = elements(x, top, left) * (1 - right) + elements(x, top, left + 1) * right;
    const Tensor lower = elements(x, top + 1, left) * (1 - right) + elements(x, top + 1, left + 1) * right;
    return (upper * (1 - below) + lower * below).to(call[0].dtype());
}

Tensor affine_grid(const Tensor& given, const Shape& size, bool align_corners) {
    constexpr const char* name = "affine_grid";
    const CheckedArgs call(name, {arg::floating("theta", given)});
    const Tensor& theta = call[0];
    if (theta.dims() != 3 || theta.size(1) != 2 || theta.size(2) != 3 || size.dims() != 4 || size[0] != theta.size(0) ||
        size[2] < 1 || size[3] < 1)
        throw InvalidArgument(fmt::format("{}: theta {} and size {}; expected (N, 2, 3) and (N, C, H, W)", name,
                                          theta.shape().str(), size.str()));
    const auto coordinates = [&](std::int64_t count) {
        const double end = align_corners ? 1 : 1 - 1 / static_cast<double>(count);
        return count == 1 ? Tensor::zeros({1}, theta.dtype(), theta.device())
                          : Tensor::linspace(-end, end, count, theta.dtype(), theta.device());
    };
    const Shape points{size[2], size[3]};
    const Tensor x = coordinates(size[3]).expand(points), y = coordinates(size[2]).unsqueeze(1).expand(points);
    const Tensor base = stack({x, y, ones_like(x)}, 2).reshape({size[2] * size[3], 3});
    return matmul(base, theta.transpose(1, 2)).reshape({size[0], size[2], size[3], 2});
}

}  // namespace lockstep
