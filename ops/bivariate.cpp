// Functions of two numbers that networks rarely compute. 16-bit inputs are computed in f32 and rounded once.
#include "lockstep/ops/internal/bivariate.h"

#include <functional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/integer_functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Both numbers and the result, of which the gradients are made.
struct Known {
    Tensor a, b, y;
};

/// The derivative by one of the numbers, times dy.
using Derivative = std::function<Tensor(const Tensor& dy, const Known& known)>;

template <class Op>
Tensor of_two_numbers(const char* name, const Tensor& given_a, const Tensor& given_b, const Op& operation,
                      const Derivative& by_a, const Derivative& by_b) {
    const CheckedArgs call(name, {arg::real("the first tensor", given_a), arg::real("the second tensor", given_b)});
    const Tensor a = widened(call[0]), b = widened(call[1]);
    const Tensor y = apply_one(operation, {a, b}, broadcast_meta(name, a.dtype(), {a, b}));
    if (needs_autograd({a, b})) {
        const Origin from_a(a), from_b(b);
        const SavedTensor first(a, name), second(b, name), result(y, name, SavedTensor::Role::output);
        add_autograd_node(name, {a, b}, {y}, BackwardFunction::composed([=](const auto& gradients) {
                              const Known known{first.get(), second.get(), result.get()};
                              std::vector<Tensor> of_inputs(2);
                              if (from_a.wanted) of_inputs[0] = from_a.reduce(by_a(gradients[0], known));
                              if (from_b.wanted) of_inputs[1] = from_b.reduce(by_b(gradients[0], known));
                              return of_inputs;
                          }));
    }
    return y.to(call[0].dtype());
}

Tensor bivariate(const char* name, const Tensor& a, const Tensor& b, Bivariate::Function function,
                 const Derivative& by_a, const Derivative& by_b) {
    return of_two_numbers(name, a, b, Bivariate{function}, by_a, by_b);
}

/// a / b rounded down, consistent with the rest of fmod (torch.floor_divide of floats).
Tensor floor_quotient(const Tensor& a, const Tensor& b) {
    const Tensor rest = fmod(a, b), whole = (a - rest) / b;
    const Tensor other_sign = logical_and(ne(rest, 0), ne(rest < 0, b < 0));
    const Tensor rounded = round(where(other_sign, whole - 1, whole));
    // The sign of a quotient of 0.
    return where(eq(b, 0), a / b, where(eq(rounded, 0), copysign(rounded, a / b), rounded));
}

/// A quotient of floats, which is constant between its steps.
Tensor rounded_quotient(const char* name, const Tensor& given_a, const Tensor& given_b, RoundingMode mode) {
    const CheckedArgs call(name, {arg::real("the first tensor", given_a), arg::real("the second tensor", given_b)});
    const Tensor a = widened(call[0]), b = widened(call[1]);
    const auto quotient = [&] {
        const NoGrad no_grad;
        return mode == RoundingMode::trunc ? trunc(a / b) : floor_quotient(a, b);
    };
    Tensor y = quotient();
    if (needs_autograd({a, b})) {
        const Origin from_a(a), from_b(b);
        add_autograd_node(name, {a, b}, {y}, BackwardFunction::composed([=](const auto& gradients) {
                              std::vector<Tensor> zeros(2);
                              const Tensor zero = zeros_like(gradients[0]);
                              if (from_a.wanted) zeros[0] = from_a.reduce(zero);
                              if (from_b.wanted) zeros[1] = from_b.reduce(zero);
                              return zeros;
                          }));
    }
    return y.to(call[0].dtype());
}

Tensor quotient(const char* name, const Tensor& a, const Tensor& b, RoundingMode mode) {
    using Function = IntegerBivariate::Function;
    if (!integers::are_both(a, b)) return rounded_quotient(name, a, b, mode);
    return integers::bivariate(name, a, b,
                               mode == RoundingMode::trunc ? Function::trunc_quotient : Function::floor_quotient);
}

/// The number as a tensor of the dtype in which it is combined with x.
Tensor operand(const char* name, Scalar number, const Tensor& x) {
    const CheckedArgs call(name, {arg::any("the tensor", x)});
    if (!is_floating(x.dtype()) && number.is_integer()) return integers::number(name, number, x);
    return Tensor::full({}, number.value(), is_floating(x.dtype()) ? x.dtype() : DType::f32, x.device());
}

Tensor unchanged(const Tensor& dy, const Known&) { return dy; }

}  // namespace

Tensor pow(const Tensor& base, const Tensor& exponent) {
    if (integers::are_both(base, exponent))
        return integers::bivariate("pow", base, exponent, IntegerBivariate::Function::pow);
    return bivariate(
        "pow", base, exponent, Bivariate::Function::pow,
        [](const Tensor& dy, const Known& known) {
            return where(eq(known.b, 0), 0, dy * (known.b * pow(known.a, known.b - 1)));
        },
        [](const Tensor& dy, const Known& known) {
            // No logarithm of 0, whose powers do not depend on a positive exponent.
            const Tensor constant = logical_and(eq(known.a, 0), known.b >= 0);
            return where(constant, 0, dy * (known.y * log(where(constant, 1, known.a))));
        });
}

Tensor pow(Scalar base, const Tensor& exponent) { return pow(operand("pow", base, exponent), exponent); }

Tensor atan2(const Tensor& y, const Tensor& x) {
    const auto scale = [](const Known& known) { return reciprocal(square(known.a) + square(known.b)); };
    return bivariate(
        "atan2", y, x, Bivariate::Function::atan2,
        [scale](const Tensor& dy, const Known& known) { return dy * known.b * scale(known); },
        [scale](const Tensor& dy, const Known& known) { return dy * neg(known.a) * scale(known); });
}

Tensor hypot(const Tensor& a, const Tensor& b) {
    return bivariate(
        "hypot", a, b, Bivariate::Function::hypot,
        [](const Tensor& dy, const Known& known) { return dy * (known.a / known.y); },
        [](const Tensor& dy, const Known& known) { return dy * (known.b / known.y); });
}

Tensor fmod(const Tensor& x, const Tensor& divisor) {
    if (integers::are_both(x, divisor))
        return integers::bivariate("fmod", x, divisor, IntegerBivariate::Function::fmod);
    return bivariate("fmod", x, divisor, Bivariate::Function::fmod, unchanged,
                     [](const Tensor& dy, const Known& known) { return neg(dy) * trunc(known.a / known.b); });
}

Tensor remainder(const Tensor& x, const Tensor& divisor) {
    if (integers::are_both(x, divisor))
        return integers::bivariate("remainder", x, divisor, IntegerBivariate::Function::remainder);
    return bivariate("remainder", x, divisor, Bivariate::Function::remainder, unchanged,
                     [](const Tensor& dy, const Known& known) { return neg(dy) * floor_quotient(known.a, known.b); });
}

Tensor div(const Tensor& a, const Tensor& b, RoundingMode rounding_mode) {
    return quotient("div", a, b, rounding_mode);
}
Tensor div(const Tensor& a, Scalar b, RoundingMode rounding_mode) {
    return quotient("div", a, operand("div", b, a), rounding_mode);
}
Tensor floor_divide(const Tensor& a, const Tensor& b) {
    const NoGrad no_grad;
    return quotient("floor_divide", a, b, RoundingMode::floor);
}
Tensor floor_divide(const Tensor& a, Scalar b) {
    const NoGrad no_grad;
    return quotient("floor_divide", a, operand("floor_divide", b, a), RoundingMode::floor);
}

Tensor copysign(const Tensor& a, const Tensor& b) {
    return bivariate(
        "copysign", a, b, Bivariate::Function::copysign,
        [](const Tensor& dy, const Known& known) {
            const Tensor none = eq(known.a, 0);
            return where(none, 0, dy * (known.y / where(none, 1, known.a)));
        },
        [](const Tensor& dy, const Known&) { return zeros_like(dy); });
}

namespace {

/// fmax or fmin; the gradient belongs to `a` where `a_wins`.
Tensor extremum_of_numbers(const char* name, const Tensor& a, const Tensor& b, Bivariate::Function function,
                           Tensor (*a_wins)(const Tensor&, const Tensor&)) {
    const auto share = [a_wins](const Known& known) { return logical_or(a_wins(known.a, known.b), isnan(known.b)); };
    return bivariate(
        name, a, b, function, [share](const Tensor& dy, const Known& known) { return where(share(known), dy, 0); },
        [share](const Tensor& dy, const Known& known) { return where(share(known), 0, dy); });
}

}  // namespace

Tensor lerp(const Tensor& start, const Tensor& end, double weight) {
    return of_two_numbers(
        "lerp", start, end, Lerp{weight}, [=](const Tensor& dy, const Known&) { return dy * (1 - weight); },
        [=](const Tensor& dy, const Known&) { return dy * weight; });
}

Tensor fmax(const Tensor& a, const Tensor& b) {
    return extremum_of_numbers("fmax", a, b, Bivariate::Function::fmax, ge);
}
Tensor fmin(const Tensor& a, const Tensor& b) {
    return extremum_of_numbers("fmin", a, b, Bivariate::Function::fmin, le);
}

}  // namespace lockstep
