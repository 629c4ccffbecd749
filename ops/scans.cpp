// Sums and products over the elements before each one, and products of all, in about log2(n) steps.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// `x` with the elements along `dim` moved by `distance` towards the end, and `value` at the beginning.
Tensor delayed(const Tensor& x, int dim, std::int64_t distance, double value) {
    std::vector<std::int64_t> ends(static_cast<std::size_t>(2 * (x.dims() - dim)), 0);
    ends[ends.size() - 2] = distance;
    return pad(x.slice(dim, 0, x.size(dim) - distance), ends, value);
}

/// Hillis and Steele, "Data Parallel Algorithms" (1986).
template <class Combine>
Tensor scanned(const char* name, const Tensor& given, int dim, double neutral, Combine combine) {
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    if (call[0].dims() == 0) {
        wrap_dim(dim, 1, name);
        return call[0].clone();
    }
    const int along = wrap_dim(dim, call[0].dims(), name);
    if (Trace::current() && call[0].is_batch() && along == 0)
        throw InvalidArgument(
            fmt::format("{}: dimension 0 of a batch cannot be scanned, because a shard has only some "
                        "of its rows; expected another dimension",
                        name));
    Tensor y = widened(call[0]);
    for (std::int64_t distance = 1; distance < y.size(along); distance *= 2)
        y = combine(y, delayed(y, along, distance, neutral));
    return tagged(y.to(call[0].dtype()), call[0].is_batch() && along != 0);
}

/// The product along a dimension, which is kept.
Tensor multiplied(Tensor x, int dim) {
    if (x.size(dim) == 0) {
        Shape shape = x.shape();
        shape[dim] = 1;
        return Tensor::full(shape, 1, x.dtype(), x.device());
    }
    while (x.size(dim) > 1) {
        const std::int64_t half = x.size(dim) / 2;
        const Tensor pairs = x.slice(dim, 0, half) * x.slice(dim, half, 2 * half);
        x = x.size(dim) % 2 == 0 ? pairs : cat({pairs, x.slice(dim, 2 * half, 2 * half + 1)}, dim);
    }
    return x;
}

}  // namespace

Tensor cumsum(const Tensor& x, int dim) {
    return scanned("cumsum", x, dim, 0, [](const Tensor& a, const Tensor& b) { return a + b; });
}

Tensor cumprod(const Tensor& x, int dim) {
    return scanned("cumprod", x, dim, 1, [](const Tensor& a, const Tensor& b) { return a * b; });
}

Tensor prod(const Tensor& given, std::optional<int> dim, bool keepdim) {
    const CheckedArgs call("prod", {arg::floating("the tensor", given)});
    Tensor x = widened(call[0]);
    if (x.dims() == 0) {
        if (dim) wrap_dim(*dim, 1, "prod");
        return call[0].clone();
    }
    const int along = dim ? wrap_dim(*dim, x.dims(), "prod") : 0;
    if (!dim) x = x.reshape({x.numel()});
    Tensor y = multiplied(x, along);
    if (!dim || !keepdim) y = y.squeeze(along);
    if (!dim && keepdim) y = y.reshape(Shape(std::vector<std::int64_t>(static_cast<std::size_t>(call[0].dims()), 1)));
    return tagged(y.to(call[0].dtype()), call[0].is_batch() && dim && along != 0);
}

}  // namespace lockstep
