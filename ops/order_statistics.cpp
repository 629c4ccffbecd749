// Order statistics, counts, and statistics of the elements that are not NaN.
#include <fmt/format.h>

#include <cmath>

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

Tensor quantile(const Tensor& given, double q, int dim, bool keepdim) {
    constexpr const char* name = "quantile";
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    if (is_half_type(x.dtype()))
        throw InvalidArgument(
            fmt::format("{}: the tensor has dtype {}; expected f32 or f64", name, name_of(x.dtype())));
    if (!(q >= 0 && q <= 1)) throw InvalidArgument(fmt::format("{}: invalid q ({}); expected [0, 1]", name, q));
    const int along = ordered_dim(name, x, dim);
    const double rank = q * static_cast<double>(x.size(along) - 1), below = std::floor(rank);
    const auto first = static_cast<std::int64_t>(below);
    const ValuesAndIndices ordered = sort(x, along);
    const Tensor low = nth(ordered, first, along, true).values;
    Tensor y = low;
    if (rank > below) y = lerp(low, nth(ordered, first + 1, along, true).values, rank - below);
    y = where(any(isnan(x), along, true), std::numeric_limits<double>::quiet_NaN(), y);
    return keepdim ? y : y.squeeze(along);
}

}  // namespace lockstep
