// Extremes, norms and moments, made of sums, comparisons and the position of the largest element.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/integer_functions.h"
#include "lockstep/ops/internal/selection_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// `dims` as numbers from 0; all dimensions if the list is empty.
std::vector<int> listed(const char* name, const Tensor& x, const Dims& dims) {
    const std::uint32_t bits = checks::dim_bits(name, x, dims.list());
    std::vector<int> result;
    for (int dim = 0; dim < x.dims(); ++dim)
        if (bits >> dim & 1u) result.push_back(dim);
    return result;
}

std::int64_t count_over(const Tensor& x, const std::vector<int>& dims) {
    std::int64_t count = 1;
    for (const int dim : dims) count *= x.size(dim);
    return count;
}

void require_elements(const char* name, const Tensor& x, int dim) {
    if (x.size(dim) == 0)
        throw InvalidArgument(
            fmt::format("{}: dimension {} of {} is empty; expected at least one element", name, dim, x.shape().str()));
}

/// Removes `dims`, which have size 1, from `x`.
Tensor without(Tensor x, std::vector<int> dims) {
    std::sort(dims.rbegin(), dims.rend());
    for (const int dim : dims) x = x.squeeze(dim);
    return x;
}

/// Positions of the largest or smallest elements along a dimension, which is kept.
Tensor position(const Tensor& x, int dim, bool smallest) {
    return argmax(smallest ? integers::reversed(x.detach()) : x, dim, true);
}

ValuesAndIndices extreme(const char* name, const Tensor& given, int dim, bool keepdim, bool smallest) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    if (x.dims() == 0) {
        wrap_dim(dim, 1, name);
        return {x.clone(), Tensor::zeros({}, DType::i64, x.device())};
    }
    const int along = wrap_dim(dim, x.dims(), name);
    require_elements(name, x, along);
    const Tensor indices = position(x, along, smallest), values = gather(x, along, indices);
    if (keepdim) return {values, indices};
    return {values.squeeze(along), indices.squeeze(along)};
}

Tensor extreme_value(const char* name, const Tensor& given, const Dims& dims, bool keepdim, bool smallest) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const std::vector<int> over = listed(name, x, dims);
    Tensor y = is_floating(x.dtype()) ? x.detach() : x.to(DType::i64);
    for (const int dim : over) {
        require_elements(name, y, dim);
        Shape shape = y.shape();
        shape[dim] = 1;
        y = apply_one(Extreme{dim, smallest}, {y}, shaped(y, shape, y.is_batch() && dim != 0));
    }
    y = over.empty() ? x.detach().clone() : y.to(x.dtype());
    if (needs_autograd({x})) {
        // Equal extremes share the gradient. Their number may exceed what 16 bits count.
        const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
        add_autograd_node(name, {x}, {y},
                          BackwardFunction::composed(
                              [over, wide, kept = y.detach(), saved = SavedTensor(x, name)](const auto& gradients) {
                                  const Tensor chosen = eq(saved.get(), kept).to(wide);
                                  const Tensor share = gradients[0].to(chosen.dtype()) / sum(chosen, over, true);
                                  return std::vector<Tensor>{(chosen * share).to(gradients[0].dtype())};
                              }));
    }
    return keepdim ? y : without(y, over);
}

/// Whether some element is not 0, as 1 or 0 in f32.
Tensor some(const char* name, const Tensor& x, const Dims& dims, bool keepdim) {
    const std::vector<int> over = listed(name, x, dims);
    Tensor y = x.to(DType::f32);
    for (const int dim : over) {
        if (y.size(dim) == 0) {
            Shape shape = y.shape();
            shape[dim] = 1;
            y = Tensor::zeros(shape, DType::f32, y.device());
        }
        y = gather(y, dim, position(y, dim, false));
    }
    return keepdim ? y : without(y, over);
}

/// sqrt(x) with the gradient 0 at 0, as PyTorch's norms and deviations have it.
Tensor root(const Tensor& x) {
    const Tensor zero = eq(x, 0);
    return where(zero, 0, sqrt(where(zero, 1, x)));
}

Tensor variance(const char* name, const Tensor& x, const Dims& dims, double correction, bool keepdim) {
    const std::vector<int> over = listed(name, x, dims);
    const double freedom = std::max(0.0, static_cast<double>(count_over(x, over)) - correction);
    if (over.empty()) return square(x - x) / freedom;
    return sum(square(x - mean(x, over, true)), over, keepdim) / freedom;
}

}  // namespace

ValuesAndIndices(max)(const Tensor& x, int dim, bool keepdim) { return extreme("max", x, dim, keepdim, false); }
ValuesAndIndices(min)(const Tensor& x, int dim, bool keepdim) { return extreme("min", x, dim, keepdim, true); }

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) { return extreme_value("amax", x, dims, keepdim, false); }
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) { return extreme_value("amin", x, dims, keepdim, true); }

Tensor argmin(const Tensor& given, std::optional<int> dim, bool keepdim) {
    const CheckedArgs call("argmin", {arg::any("the tensor", given)});
    return argmax(integers::reversed(call[0].detach()), dim, keepdim);
}

Tensor any(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("any", {arg::any("the tensor", given)});
    return some("any", ne(call[0], 0), dims, keepdim) > 0.5;
}

Tensor all(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("all", {arg::any("the tensor", given)});
    return some("all", eq(call[0], 0), dims, keepdim) < 0.5;
}

Tensor var(const Tensor& given, const Dims& dims, double correction, bool keepdim) {
    const CheckedArgs call("var", {arg::floating("the tensor", given)});
    return variance("var", widened(call[0]), dims, correction, keepdim).to(call[0].dtype());
}

Tensor std(const Tensor& given, const Dims& dims, double correction, bool keepdim) {
    const CheckedArgs call("std", {arg::floating("the tensor", given)});
    return root(variance("std", widened(call[0]), dims, correction, keepdim)).to(call[0].dtype());
}

Tensor norm(const Tensor& given, double p, const Dims& dims, bool keepdim) {
    const CheckedArgs call("norm", {arg::floating("the tensor", given)});
    const Tensor x = widened(call[0]);
    const std::vector<int> over = listed("norm", x, dims);
    Tensor y;
    if (p == 2)
        y = root(sum(square(x), over, keepdim));
    else if (p == 1)
        y = sum(abs(x), over, keepdim);
    else if (std::isinf(p) && p > 0)
        y = amax(abs(x), over, keepdim);
    else
        throw InvalidArgument(fmt::format("norm: invalid order ({}); expected 1, 2 or infinity", p));
    return y.to(call[0].dtype());
}

Tensor logsumexp(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("logsumexp", {arg::real("the tensor", given)});
    const Tensor x = widened(call[0]);
    const std::vector<int> over = listed("logsumexp", x, dims);
    // Without the largest element exp() would overflow; an infinite one would make differences NaN.
    Tensor largest = amax(x.detach(), over, true);
    largest = where(isfinite(largest), largest, 0);
    const Tensor y = log(sum(exp(x - largest), over, true)) + largest;
    return (keepdim ? y : without(y, over)).to(call[0].dtype());
}

Tensor outer(const Tensor& given_a, const Tensor& given_b) {
    const CheckedArgs call("outer",
                           {arg::promoted("the first vector", given_a), arg::promoted("the second vector", given_b)});
    checks::dims("outer", "the first vector", call[0], 1, "(N)");
    checks::dims("outer", "the second vector", call[1], 1, "(M)");
    return call[0].unsqueeze(1) * call[1].unsqueeze(0);
}

}  // namespace lockstep
