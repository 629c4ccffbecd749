// Sums and products over the elements before each one, and products of all.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// The dtype in which numbers of `x` are added and multiplied: 16-bit floats as f32, integers and bool as i64.
Tensor summed(const Tensor& x) { return is_floating(x.dtype()) ? widened(x) : x.to(DType::i64); }
/// The dtype of the sum or product of such numbers.
DType result_dtype(const Tensor& x) { return is_floating(x.dtype()) ? x.dtype() : DType::i64; }

/// `x` with the elements along `dim` moved by `distance` towards the end, and `value` at the beginning.
Tensor delayed(const Tensor& x, int dim, std::int64_t distance, double value) {
    std::vector<std::int64_t> ends(static_cast<std::size_t>(2 * (x.dims() - dim)), 0);
    ends[ends.size() - 2] = distance;
    return pad(x.slice(dim, 0, x.size(dim) - distance), ends, value);
}

/// The dimension along which x, which has at least one, is scanned. Throws InvalidArgument.
int scanned_dim(const char* name, const Tensor& x, int dim) {
    const int along = wrap_dim(dim, x.dims(), name);
    if (Trace::current() && x.is_batch() && along == 0)
        throw InvalidArgument(
            fmt::format("{}: dimension 0 of a batch cannot be scanned, because a shard has only some "
                        "of its rows; expected another dimension",
                        name));
    return along;
}

Tensor cumulative_sum(const Tensor& x, int dim, bool reverse) {
    const Tensor y = apply_one(CumulativeSum{dim, reverse}, {x}, like(x));
    if (needs_autograd({x}))
        add_autograd_node("cumsum", {x}, {y}, BackwardFunction::composed([dim, reverse](const auto& gradients) {
                              return std::vector<Tensor>{cumulative_sum(gradients[0], dim, !reverse)};
                          }));
    return y;
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

Tensor cumsum(const Tensor& given, int dim) {
    const CheckedArgs call("cumsum", {arg::any("the tensor", given)});
    if (call[0].dims() == 0) {
        wrap_dim(dim, 1, "cumsum");
        return call[0].to(result_dtype(call[0])).clone();
    }
    const int along = scanned_dim("cumsum", call[0], dim);
    const Tensor y = cumulative_sum(summed(call[0]), along, false);
    return tagged(y.to(result_dtype(call[0])), call[0].is_batch() && along != 0);
}

/// In about log2(n) steps: Hillis and Steele, "Data Parallel Algorithms" (1986).
Tensor cumprod(const Tensor& given, int dim) {
    const CheckedArgs call("cumprod", {arg::any("the tensor", given)});
    if (call[0].dims() == 0) {
        wrap_dim(dim, 1, "cumprod");
        return call[0].to(result_dtype(call[0])).clone();
    }
    const int along = scanned_dim("cumprod", call[0], dim);
    Tensor y = summed(call[0]);
    for (std::int64_t distance = 1; distance < y.size(along); distance *= 2) y = y * delayed(y, along, distance, 1);
    return tagged(y.to(result_dtype(call[0])), call[0].is_batch() && along != 0);
}

namespace {

/// The winner of the elements so far, by the same steps.
ValuesAndIndices winners(const char* name, const Tensor& given, int dim, bool largest) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    if (x.dims() == 0) {
        wrap_dim(dim, 1, name);
        return {x.clone(), Tensor::zeros({}, DType::i64, x.device())};
    }
    const int along = scanned_dim(name, x, dim);
    const std::int64_t size = x.size(along);
    Shape line(std::vector<std::int64_t>(static_cast<std::size_t>(x.dims()), 1));
    line[along] = size;
    Tensor best = x.detach();
    Tensor index =
        Tensor::arange(0, static_cast<double>(size), 1, DType::i64, x.device()).reshape(line).expand(x.shape());
    for (std::int64_t distance = 1; distance < size; distance *= 2) {
        // Elements without one before them remain.
        const Tensor own = best.slice(along, distance, size), before = best.slice(along, 0, size - distance);
        const Tensor wins = logical_or(largest ? own >= before : own <= before, ne(own, own));
        const auto step = [&](const Tensor& all) {
            return cat({all.slice(along, 0, distance),
                        where(wins, all.slice(along, distance, size), all.slice(along, 0, size - distance))},
                       along);
        };
        index = step(index);
        best = step(best);
    }
    const bool batch = x.is_batch() && along != 0;
    return {tagged(gather(x, along, tagged(index, batch)), batch), tagged(index, batch)};
}

}  // namespace

ValuesAndIndices cummax(const Tensor& x, int dim) { return winners("cummax", x, dim, true); }
ValuesAndIndices cummin(const Tensor& x, int dim) { return winners("cummin", x, dim, false); }

Tensor logcumsumexp(const Tensor& given, int dim) {
    constexpr const char* name = "logcumsumexp";
    const CheckedArgs call(name, {arg::real("the tensor", given)});
    if (call[0].dims() == 0) {
        wrap_dim(dim, 1, name);
        return call[0].clone();
    }
    const int along = scanned_dim(name, call[0], dim);
    Tensor y = widened(call[0]);
    for (std::int64_t distance = 1; distance < y.size(along); distance *= 2) {
        const Tensor later = y.slice(along, distance, y.size(along)),
                     before = y.slice(along, 0, y.size(along) - distance);
        y = cat({y.slice(along, 0, distance), logaddexp(later, before)}, along);
    }
    return tagged(y.to(call[0].dtype()), call[0].is_batch() && along != 0);
}

Tensor diff(const Tensor& given, int n, int dim) {
    constexpr const char* name = "diff";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    Tensor x = call[0];
    if (x.dims() == 0) throw InvalidArgument("diff: the tensor is a scalar; expected at least one dimension");
    if (n < 0) throw InvalidArgument(fmt::format("{}: invalid n ({}); expected 0 or more", name, n));
    const int along = wrap_dim(dim, x.dims(), name);
    checks::not_rows(name, x, along);
    for (; n > 0 && x.size(along) > 0; --n) {
        const Tensor later = x.slice(along, 1), before = x.slice(along, 0, x.size(along) - 1);
        x = x.dtype() == DType::boolean ? ne(later, before) : later - before;
    }
    return x;
}

Tensor prod(const Tensor& given, std::optional<int> dim, bool keepdim) {
    const CheckedArgs call("prod", {arg::any("the tensor", given)});
    Tensor x = summed(call[0]);
    if (x.dims() == 0) {
        if (dim) wrap_dim(*dim, 1, "prod");
        return call[0].to(result_dtype(call[0])).clone();
    }
    const int along = dim ? wrap_dim(*dim, x.dims(), "prod") : 0;
    if (!dim) x = x.reshape({x.numel()});
    Tensor y = multiplied(x, along);
    if (!dim || !keepdim) y = y.squeeze(along);
    if (!dim && keepdim) y = y.reshape(Shape(std::vector<std::int64_t>(static_cast<std::size_t>(call[0].dims()), 1)));
    return tagged(y.to(result_dtype(call[0])), call[0].is_batch() && dim && along != 0);
}

}  // namespace lockstep
