// Sums, means, extrema and products of the elements with the same index.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/integer_functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// A reduction of elements of `source` into those of x at their indices along `dim`.
struct ScatteredElements {
    Tensor x, index, source;
    int dim;
    bool include_self;

    /// How many elements each result is made of, in the dtype of x.
    Tensor counts(const Tensor& of_x, const Tensor& of_source) const {
        return scatter_add(of_x.to(x.dtype()), dim, index, of_source.to(x.dtype()));
    }
    /// Whether a result is made of elements of `source`.
    Tensor touched() const { return counts(zeros_like(x), ones_like(source)) > 0; }
};

Tensor sum_or_mean(const ScatteredElements& of, bool mean) {
    const Tensor touched = of.touched(), start = of.include_self ? of.x : masked_fill(of.x, touched, 0);
    const Tensor total = scatter_add(start, of.dim, of.index, of.source);
    if (!mean) return total;
    const Tensor self = of.include_self ? ones_like(of.x) : logical_not(touched).to(of.x.dtype());
    const Tensor count = of.counts(self, ones_like(of.source));
    return is_floating(total.dtype()) ? total / count : floor_divide(total, count);
}

/// In ascending order, the last of the elements with one index is the largest: NaN is after all numbers.
Tensor largest(const ScatteredElements& of) {
    const ValuesAndIndices ordered = sort(of.source, of.dim);
    const Tensor at = gather(of.index, of.dim, ordered.indices);
    const Tensor found = scatter(of.x, of.dim, at, ordered.values);
    return of.include_self ? maximum(found, of.x) : found;
}

/// Equal extrema share the gradient.
Tensor extremum(const char* name, const ScatteredElements& of, bool is_largest) {
    const auto found = [&] {
        const NoGrad no_grad;
        if (is_largest) return largest(of);
        return integers::reversed(
            largest({integers::reversed(of.x), of.index, integers::reversed(of.source), of.dim, of.include_self}));
    };
    const Tensor y = found();
    if (needs_autograd({of.x, of.source})) {
        const SavedTensor x(of.x, name), source(of.source, name), index(of.index, name),
            result(y, name, SavedTensor::Role::output);
        add_autograd_node(
            name, {of.x, of.source}, {y},
            BackwardFunction::composed([=, dim = of.dim, self = of.include_self, batch = of.source.is_batch(),
                                        x_batch = of.x.is_batch()](const auto& gradients) {
                const ScatteredElements known{x.get(), index.get(), source.get(), dim, self};
                const Tensor best = result.get();
                // An untouched element of x is its own extremum.
                Tensor own = eq(known.x, best);
                if (!self) own = logical_and(own, logical_not(known.touched()));
                const Tensor theirs = eq(known.source, gather(best, dim, known.index));
                const Tensor count = known.counts(own, theirs);
                const Tensor share = gradients[0] / where(eq(count, 0), 1, count);
                const Tensor zero = Tensor::zeros({}, share.dtype(), share.device());
                return std::vector<Tensor>{tagged(where(own, share, zero), x_batch),
                                           tagged(where(theirs, gather(share, dim, known.index), zero), batch)};
            }));
    }
    return y;
}

/// The elements in the order of their indices, each multiplied by those with the same index before it, in log2(n)
/// rounds. The last one of an index is their product.
Tensor product(const ScatteredElements& of) {
    const ValuesAndIndices ordered = sort(of.index, of.dim);
    const Tensor& at = ordered.values;
    Tensor y = gather(of.source, of.dim, ordered.indices);
    const std::int64_t count = at.size(of.dim);
    for (std::int64_t distance = 1; distance < count; distance *= 2) {
        const auto head = [&](const Tensor& x) { return x.slice(of.dim, 0, distance); };
        const auto tail = [&](const Tensor& x) { return x.slice(of.dim, distance); };
        const auto earlier = [&](const Tensor& x) { return x.slice(of.dim, 0, count - distance); };
        const Tensor alike = eq(tail(at), earlier(at));
        y = cat({head(y), tail(y) * where(alike, earlier(y), 1)}, of.dim);
    }
    const Tensor found = scatter(of.include_self ? ones_like(of.x) : of.x, of.dim, at, y);
    return of.include_self ? found * of.x : found;
}

}  // namespace

Tensor scatter_reduce(const Tensor& given, int dim, const Tensor& given_index, const Tensor& given_source,
                      ScatterReduction reduce, bool include_self) {
    constexpr const char* name = "scatter_reduce";
    const CheckedArgs call(
        name, {arg::number("the tensor", given), arg::number("src", given_source), arg::any("index", given_index)});
    const Tensor &x = call[0], &index = call[2];
    Tensor source = call[1];
    if (x.dims() == 0 || source.dims() != x.dims() || index.dims() != x.dims())
        throw InvalidArgument(
            fmt::format("{}: tensors of shapes {}, {} and {}; expected equal numbers of dimensions, "
                        "at least one",
                        name, x.shape().str(), index.shape().str(), source.shape().str()));
    const int along = wrap_dim(dim, x.dims(), name);
    for (int d = 0; d < source.dims(); ++d)
        if (index.size(d) < source.size(d)) source = source.slice(d, 0, index.size(d));
    source = tagged(source, call[1].is_batch());
    const ScatteredElements of{x, index, source, along, include_self};
    const bool batch = x.is_batch() || (source.is_batch() && index.is_batch() && along != 0);
    const bool sums = reduce == ScatterReduction::sum || reduce == ScatterReduction::mean;
    const Tensor y = sums                               ? sum_or_mean(of, reduce == ScatterReduction::mean)
                     : reduce == ScatterReduction::prod ? product(of)
                                                        : extremum(name, of, reduce == ScatterReduction::amax);
    return tagged(y, batch);
}

}  // namespace lockstep
