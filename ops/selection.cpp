// Comparisons, and choices between tensors.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/selection_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

constexpr Relations less{1}, less_or_equal{3}, equal_to{2}, greater_or_equal{6}, greater{4}, unequal{13};

Tensor zero_like(const Tensor& x) { return Tensor::full({}, 0, x.dtype(), x.device()); }

// ---- comparisons ------------------------------------------------------------------------------------------------

Tensor compare(const char* name, const Tensor& a, const Tensor& b, Relations relations) {
    const CheckedArgs call(name, {arg::promoted("the first tensor", a), arg::promoted("the second tensor", b)});
    const Tensor x = call[0].detach(), y = call[1].detach();
    return apply_one(Compare{relations}, {x, y}, broadcast_meta(name, DType::boolean, {call[0], call[1]}));
}

/// With a number. Other tensors than floats are converted to a dtype that has the number.
Tensor compare(const char* name, const Tensor& given, Scalar number, Relations relations) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    Tensor x = call[0].detach();
    if (!is_floating(x.dtype()) && !number.is_integer()) {
        x = x.to(DType::f32);
    } else if (!is_floating(x.dtype())) {
        checks::exact_number(name, number.value(), x.dtype());
        if (!checks::holds(x.dtype(), number.value())) x = x.to(DType::i64);
    }
    return compare(name, x, Tensor::full({}, number.value(), x.dtype(), x.device()), relations);
}

// ---- choices ----------------------------------------------------------------------------------------------------

/// `what`: the condition in messages.
Tensor choose(const char* name, const char* what, const Tensor& given_condition, const Tensor& given_a,
              const Tensor& given_b) {
    const CheckedArgs call(
        name, {arg::promoted("the first of the tensors to choose from", given_a),
               arg::promoted("the second of the tensors to choose from", given_b), arg::any(what, given_condition)});
    const Tensor &a = call[0], &b = call[1], &condition = call[2];
    if (condition.dtype() != DType::boolean)
        throw InvalidArgument(
            fmt::format("{}: {} has dtype {}; expected bool", name, what, name_of(condition.dtype())));
    const Tensor y = apply_one(Where{}, {condition, a, b}, broadcast_meta(name, a.dtype(), {condition, a, b}));
    if (!needs_autograd({a, b})) return y;
    const Origin from_a(a), from_b(b);
    const SavedTensor saved(condition, name);
    add_autograd_node(name, {condition, a, b}, {y}, BackwardFunction::composed([=](const auto& gradients) {
                          const Tensor &dy = gradients[0], zero = zero_like(dy);
                          std::vector<Tensor> result(3);
                          if (from_a.wanted) result[1] = from_a.reduce(where(saved.get(), dy, zero));
                          if (from_b.wanted) result[2] = from_b.reduce(where(saved.get(), zero, dy));
                          return result;
                      }));
    return y;
}

/// A number as a tensor to choose, of a dtype to which that of the other tensor is promoted.
Tensor chosen_number(const char* name, Scalar number, const Tensor& other) {
    const CheckedArgs call(name, {arg::any("the tensor", other)});
    DType dtype = call[0].dtype();
    if (!is_floating(dtype) && !number.is_integer())
        dtype = DType::f32;
    else if (dtype == DType::boolean && !number.is_bool())
        dtype = DType::i64;
    checks::number_of(name, number.value(), dtype);
    return Tensor::full({}, number.value(), dtype, call[0].device());
}

/// The larger or smaller of two numbers. Equal ones share the gradient, as in PyTorch.
template <class F>
Tensor extremum(const Tensor& given_a, const Tensor& given_b, Relations loses) {
    constexpr const char* name = F::name;
    const CheckedArgs call(name,
                           {arg::promoted("the first tensor", given_a), arg::promoted("the second tensor", given_b)});
    const Tensor &a = call[0], &b = call[1];
    if (a.dtype() == DType::boolean) return std::is_same_v<F, functor::Maximum> ? logical_or(a, b) : logical_and(a, b);
    const Tensor y = apply_one(Binary<F>{}, {a, b}, broadcast_meta(name, a.dtype(), {a, b}));
    if (!needs_autograd({a, b})) return y;
    const Origin from_a(a), from_b(b);
    const SavedTensor first(a, name), second(b, name);
    add_autograd_node(name, {a, b}, {y}, BackwardFunction::composed([=](const auto& gradients) {
                          const Tensor &dy = gradients[0], zero = zero_like(dy);
                          const Tensor x1 = first.get(), x2 = second.get();
                          const Tensor shared = where(compare(name, x1, x2, equal_to), dy * 0.5, dy);
                          std::vector<Tensor> result(2);
                          if (from_a.wanted)
                              result[0] = from_a.reduce(where(compare(name, x1, x2, loses), zero, shared));
                          if (from_b.wanted)
                              result[1] = from_b.reduce(where(compare(name, x2, x1, loses), zero, shared));
                          return result;
                      }));
    return y;
}

Tensor as_condition(const char* name, const Tensor& x) {
    const CheckedArgs call(name, {arg::any("the tensor", x)});
    return call[0].dtype() == DType::boolean ? call[0] : compare(name, call[0], 0, unequal);
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", a, b, equal_to); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", a, b, unequal); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", a, b, less); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", a, b, less_or_equal); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", a, b, greater); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", a, b, greater_or_equal); }
Tensor eq(const Tensor& a, Scalar b) { return compare("eq", a, b, equal_to); }
Tensor ne(const Tensor& a, Scalar b) { return compare("ne", a, b, unequal); }
Tensor lt(const Tensor& a, Scalar b) { return compare("lt", a, b, less); }
Tensor le(const Tensor& a, Scalar b) { return compare("le", a, b, less_or_equal); }
Tensor gt(const Tensor& a, Scalar b) { return compare("gt", a, b, greater); }
Tensor ge(const Tensor& a, Scalar b) { return compare("ge", a, b, greater_or_equal); }

Tensor logical_not(const Tensor& x) { return compare("logical_not", x, 0, equal_to); }
Tensor logical_and(const Tensor& a, const Tensor& b) {
    const Tensor first = as_condition("logical_and", a);
    return choose("logical_and", "the condition", first, as_condition("logical_and", b), zero_like(first));
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
    const Tensor first = as_condition("logical_or", a);
    return choose("logical_or", "the condition", first, Tensor::full({}, 1, DType::boolean, first.device()),
                  as_condition("logical_or", b));
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
    return compare("logical_xor", as_condition("logical_xor", a), as_condition("logical_xor", b), unequal);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
    return choose("where", "the condition", condition, a, b);
}
Tensor where(const Tensor& condition, Scalar a, const Tensor& b) {
    return choose("where", "the condition", condition, chosen_number("where", a, b), b);
}
Tensor where(const Tensor& condition, const Tensor& a, Scalar b) {
    return choose("where", "the condition", condition, a, chosen_number("where", b, a));
}
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
    const CheckedArgs call("masked_fill", {arg::any("the tensor", x)});
    checks::number_of("masked_fill", value.value(), call[0].dtype());
    return choose("masked_fill", "the mask", mask, Tensor::full({}, value.value(), call[0].dtype(), call[0].device()),
                  call[0]);
}

Tensor maximum(const Tensor& a, const Tensor& b) { return extremum<functor::Maximum>(a, b, less); }
Tensor minimum(const Tensor& a, const Tensor& b) { return extremum<functor::Minimum>(a, b, greater); }

}  // namespace lockstep
