// Order statistics, counts, and statistics of the elements that are not NaN.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// The dimension along which elements are ordered; it has some.
int ordered_dim(const char* name, const Tensor& x, int dim) {
    if (x.dims() == 0)
        throw InvalidArgument(fmt::format("{}: the tensor is a scalar; expected at least one dimension", name));
    const int along = wrap_dim(dim, x.dims(), name);
    if (x.size(along) == 0)
        throw InvalidArgument(fmt::format("{}: dimension {} of {} is empty; expected at least one element", name, along,
                                          x.shape().str()));
    return along;
}

/// Element `i` of those in order along `dim`.
ValuesAndIndices nth(const ValuesAndIndices& ordered, std::int64_t i, int dim, bool keepdim) {
    const auto of = [&](const Tensor& x) {
        const Tensor element = x.slice(dim, i, i + 1);
        return keepdim ? element : element.squeeze(dim);
    };
    return {of(ordered.values), of(ordered.indices)};
}

/// The dimension along which a quantile is taken.
int quantile_dim(const char* name, const Tensor& x, double q, int dim) {
    if (is_half_type(x.dtype()))
        throw InvalidArgument(
            fmt::format("{}: the tensor has dtype {}; expected f32 or f64", name, name_of(x.dtype())));
    if (!(q >= 0 && q <= 1)) throw InvalidArgument(fmt::format("{}: invalid q ({}); expected [0, 1]", name, q));
    return ordered_dim(name, x, dim);
}

Tensor quantile_of(const char* name, const Tensor& x, double q, int dim, bool keepdim) {
    const int along = quantile_dim(name, x, q, dim);
    const double rank = q * static_cast<double>(x.size(along) - 1), below = std::floor(rank);
    const auto first = static_cast<std::int64_t>(below);
    const ValuesAndIndices ordered = sort(x, along);
    const Tensor low = nth(ordered, first, along, true).values;
    Tensor y = low;
    if (rank > below) y = lerp(low, nth(ordered, first + 1, along, true).values, rank - below);
    y = where(any(isnan(x), along, true), std::numeric_limits<double>::quiet_NaN(), y);
    return keepdim ? y : y.squeeze(along);
}

/// Each line has its own number of elements, so ranks are tensors. NaN is after all numbers.
Tensor nanquantile_of(const char* name, const Tensor& x, double q, int dim, bool keepdim) {
    const int along = quantile_dim(name, x, q, dim);
    const Tensor ordered = sort(x, along).values;
    const Tensor count = sum(logical_not(isnan(x)), along, true);
    const Tensor rank = clamp(count - 1, 0).to(DType::f64) * q, below = floor(rank);
    const Tensor low = gather(ordered, along, below.to(DType::i64));
    const Tensor high = gather(ordered, along, ceil(rank).to(DType::i64));
    // Without a difference of equal infinities.
    const Tensor y = where(eq(rank, below), low, lerp(low, high, (rank - below).to(x.dtype())));
    return keepdim ? y : y.squeeze(along);
}

Tensor all_quantiles(const char* name, const Tensor& x, const std::vector<double>& q, int dim, bool keepdim,
                     Tensor (*one)(const char*, const Tensor&, double, int, bool)) {
    if (q.empty()) throw InvalidArgument(fmt::format("{}: an empty list of quantiles; expected at least one", name));
    const int along = ordered_dim(name, x, dim);
    checks::not_rows(name, x, along);
    const Tensor ordered = sort(x, along).values;
    std::vector<Tensor> all;
    for (const double each : q) all.push_back(one(name, ordered, each, along, keepdim).tag_batch(false));
    return stack(all);
}

}  // namespace

std::pair<Tensor, Tensor> aminmax(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("aminmax", {arg::any("the tensor", given)});
    return {amin(call[0], dims, keepdim), amax(call[0], dims, keepdim)};
}

std::pair<Tensor, Tensor> var_mean(const Tensor& given, const Dims& dims, double correction, bool keepdim) {
    const CheckedArgs call("var_mean", {arg::floating("the tensor", given)});
    return {var(call[0], dims, correction, keepdim), mean(call[0], dims, keepdim)};
}

std::pair<Tensor, Tensor> std_mean(const Tensor& given, const Dims& dims, double correction, bool keepdim) {
    const CheckedArgs call("std_mean", {arg::floating("the tensor", given)});
    return {std(call[0], dims, correction, keepdim), mean(call[0], dims, keepdim)};
}

Tensor count_nonzero(const Tensor& given, const Dims& dims) {
    const CheckedArgs call("count_nonzero", {arg::any("the tensor", given)});
    return sum(ne(call[0], 0), dims);
}

Tensor nansum(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("nansum", {arg::floating("the tensor", given)});
    return sum(where(isnan(call[0]), 0, call[0]), dims, keepdim);
}

Tensor nanmean(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("nanmean", {arg::floating("the tensor", given)});
    const Tensor x = widened(call[0]), missing = isnan(x);
    const Tensor count = sum(logical_not(missing), dims, keepdim).to(x.dtype());
    return (sum(where(missing, 0, x), dims, keepdim) / count).to(call[0].dtype());
}

ValuesAndIndices kthvalue(const Tensor& given, std::int64_t k, int dim, bool keepdim) {
    constexpr const char* name = "kthvalue";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = ordered_dim(name, x, dim);
    if (k < 1 || k > x.size(along))
        throw InvalidArgument(fmt::format("{}: invalid k ({}); expected 1 to {}", name, k, x.size(along)));
    return nth(sort(x, along), k - 1, along, keepdim);
}

ValuesAndIndices median(const Tensor& given, int dim, bool keepdim) {
    constexpr const char* name = "median";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = ordered_dim(name, x, dim);
    const std::int64_t middle = (x.size(along) - 1) / 2;
    const Tensor indices = sort(x.detach(), along).indices;
    // The first NaN, if there is one.
    const Tensor of_nan = argmax(isnan(x), along, true);
    const Tensor some = any(isnan(x), along, true);
    const Tensor chosen = where(some, of_nan, indices.slice(along, middle, middle + 1));
    const Tensor values = gather(x, along, chosen);
    if (keepdim) return {values, chosen};
    return {values.squeeze(along), chosen.squeeze(along)};
}

Tensor median(const Tensor& given) {
    constexpr const char* name = "median";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    if (call[0].dims() == 0) return call[0].clone();
    checks::not_rows(name, call[0], 0);
    return median(call[0].flatten(), 0).values;
}

ValuesAndIndices nanmedian(const Tensor& given, int dim, bool keepdim) {
    constexpr const char* name = "nanmedian";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = ordered_dim(name, x, dim);
    // NaN is after all numbers.
    const Tensor indices = sort(x.detach(), along).indices;
    const Tensor count = sum(logical_not(isnan(x)), along, true);
    const Tensor chosen = gather(indices, along, floor_divide(clamp(count - 1, 0), 2));
    const Tensor values = gather(x, along, chosen);
    if (keepdim) return {values, chosen};
    return {values.squeeze(along), chosen.squeeze(along)};
}

ValuesAndIndices mode(const Tensor& given, int dim, bool keepdim) {
    constexpr const char* name = "mode";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = ordered_dim(name, x, dim), last = x.dims() - 1;
    checks::not_rows(name, x, along);
    const Tensor lines = movedim(x, along, last);
    const ValuesAndIndices ordered = sort(lines.detach(), last);
    const std::int64_t size = lines.size(last);
    const auto numbers = [&](std::int64_t first) {
        return Tensor::arange(static_cast<double>(first), static_cast<double>(size), 1, DType::i64, x.device());
    };
    // Every element has the place of the first one that is equal to it. NaN differs from NaN.
    const Tensor differs = ne(ordered.values.slice(last, 1), ordered.values.slice(last, 0, -1));
    const Tensor begin = cat({ordered.indices.slice(last, 0, 1) * 0, where(differs, numbers(1), 0)}, last);
    const Tensor count = numbers(0) - cummax(begin, last).values;  // number of equal elements before it
    const Tensor chosen = movedim(gather(ordered.indices, last, argmax(count, last, true)), last, along);
    const Tensor values = gather(x, along, chosen);
    if (keepdim) return {values, chosen};
    return {values.squeeze(along), chosen.squeeze(along)};
}

Tensor quantile(const Tensor& given, double q, int dim, bool keepdim) {
    const CheckedArgs call("quantile", {arg::floating("the tensor", given)});
    return quantile_of("quantile", call[0], q, dim, keepdim);
}
Tensor quantile(const Tensor& given, const std::vector<double>& q, int dim, bool keepdim) {
    const CheckedArgs call("quantile", {arg::floating("the tensor", given)});
    return all_quantiles("quantile", call[0], q, dim, keepdim, quantile_of);
}
Tensor nanquantile(const Tensor& given, double q, int dim, bool keepdim) {
    const CheckedArgs call("nanquantile", {arg::floating("the tensor", given)});
    return nanquantile_of("nanquantile", call[0], q, dim, keepdim);
}
Tensor nanquantile(const Tensor& given, const std::vector<double>& q, int dim, bool keepdim) {
    const CheckedArgs call("nanquantile", {arg::floating("the tensor", given)});
    return all_quantiles("nanquantile", call[0], q, dim, keepdim, nanquantile_of);
}

Tensor histc(const Tensor& given, std::int64_t bins, double min, double max) {
    constexpr const char* name = "histc";
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    if (bins < 1 || !(min <= max) || std::isinf(min) || std::isinf(max))
        throw InvalidArgument(
            fmt::format("{}: {} bins from {} to {}; expected at least one bin, and finite limits in ascending order",
                        name, bins, min, max));
    const Tensor x = widened(call[0].detach()).flatten();
    Tensor low = Tensor::full({}, min, x.dtype(), x.device()), high = Tensor::full({}, max, x.dtype(), x.device());
    if (min == max) {
        if (x.numel() == 0) return Tensor::zeros({bins}, call[0].dtype(), x.device());
        low = amin(x);
        high = amax(x);
        const Tensor one_value = eq(low, high);
        low = where(one_value, low - 1.0, low);
        high = where(one_value, high + 1.0, high);
    }
    const Tensor inside = logical_and(x >= low, x <= high);
    const Tensor place = (where(inside, x, low) - low) * static_cast<double>(bins) / (high - low);
    // All others are counted in one more bin.
    const Tensor bin = where(inside, clamp(place.to(DType::i64), 0, bins - 1), bins);
    const Tensor counts = scatter_add(Tensor::zeros({bins + 1}, DType::i64, x.device()), 0, bin.tag_batch(false),
                                      Tensor::ones(bin.shape(), DType::i64, x.device()));
    return counts.slice(0, 0, bins).to(call[0].dtype());
}

}  // namespace lockstep
