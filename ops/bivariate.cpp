// Functions of two numbers that networks rarely compute. 16-bit inputs are computed in f32 and rounded once.
#include "lockstep/ops/internal/bivariate.h"

#include <fmt/format.h>

#include <functional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Both numbers and the result, of which the gradients are made.
struct Known {
    Tensor a, b, y;
};

/// The derivative by one of the numbers, times dy.
using Derivative = std::function<Tensor(const Tensor& dy, const Known& known)>;

Tensor bivariate(const char* name, const Tensor& given_a, const Tensor& given_b, Bivariate::Function function,
                 const Derivative& by_a, const Derivative& by_b) {
    const CheckedArgs call(name, {arg::real("the first tensor", given_a), arg::real("the second tensor", given_b)});
    const Tensor a = widened(call[0]), b = widened(call[1]);
    const Tensor y = apply_one(Bivariate{function}, {a, b}, broadcast_meta(name, a.dtype(), {a, b}));
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

/// PyTorch has integer results for integers, which the kernel does not compute.
void require_a_float(const char* name, const Tensor& a, const Tensor& b) {
    if (a.defined() && b.defined() && !is_floating(a.dtype()) && !is_floating(b.dtype()))
        throw InvalidArgument(
            fmt::format("{}: the tensors have dtypes {} and {}; expected a floating dtype in one of them "
                        "(use .to(DType::f32))",
                        name, name_of(a.dtype()), name_of(b.dtype())));
}

/// a / b rounded down, consistent with the rest of fmod (torch.floor_divide of floats).
Tensor floor_quotient(const Tensor& a, const Tensor& b) {
    const Tensor rest = fmod(a, b), whole = (a - rest) / b;
    const Tensor other_sign = logical_and(ne(rest, 0), ne(rest < 0, b < 0));
    return where(eq(b, 0), a / b, round(where(other_sign, whole - 1, whole)));
}

Tensor unchanged(const Tensor& dy, const Known&) { return dy; }

}  // namespace

Tensor pow(const Tensor& base, const Tensor& exponent) {
    require_a_float("pow", base, exponent);
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

Tensor pow(Scalar base, const Tensor& exponent) {
    const CheckedArgs call("pow", {arg::any("the exponent", exponent)});
    const DType dtype = call[0].dtype();
    return pow(
        Tensor::full({}, base.value(), is_floating(dtype) || base.is_integer() ? dtype : DType::f32, call[0].device()),
        call[0]);
}

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
    require_a_float("fmod", x, divisor);
    return bivariate("fmod", x, divisor, Bivariate::Function::fmod, unchanged,
                     [](const Tensor& dy, const Known& known) { return neg(dy) * trunc(known.a / known.b); });
}

Tensor remainder(const Tensor& x, const Tensor& divisor) {
    require_a_float("remainder", x, divisor);
    return bivariate("remainder", x, divisor, Bivariate::Function::remainder, unchanged,
                     [](const Tensor& dy, const Known& known) { return neg(dy) * floor_quotient(known.a, known.b); });
}

}  // namespace lockstep
