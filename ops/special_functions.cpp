// Special functions of every element. 16-bit inputs are computed in f32 and rounded once.
#include "lockstep/ops/internal/special_functions.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <numbers>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// The derivative, from x and y.
using Slope = std::function<Tensor(const Tensor& x, const Tensor& y)>;

Tensor special_function(const char* name, const Tensor& given, SpecialFunction function, const Slope& slope) {
    const CheckedArgs call(name, {arg::real("the tensor", given)});
    const Tensor x = widened(call[0]);
    const Tensor y = apply_one(function, {x}, like(x));
    if (needs_autograd({x})) {
        const SavedTensor in(x, name), out(y, name, SavedTensor::Role::output);
        add_autograd_node(name, {x}, {y}, BackwardFunction::composed([=](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0] * slope(in.get(), out.get())};
                          }));
    }
    return y.to(call[0].dtype());
}

}  // namespace

Tensor erfc(const Tensor& x) {
    return special_function("erfc", x, {SpecialFunction::Function::erfc}, [](const Tensor& in, const Tensor&) {
        return exp(neg(square(in))) * (-2 * std::numbers::inv_sqrtpi);
    });
}

Tensor erfinv(const Tensor& x) {
    return special_function("erfinv", x, {SpecialFunction::Function::erfinv}, [](const Tensor&, const Tensor& out) {
        return exp(square(out)) * (0.5 / std::numbers::inv_sqrtpi);
    });
}

Tensor lgamma(const Tensor& x) {
    return special_function("lgamma", x, {SpecialFunction::Function::lgamma},
                            [](const Tensor& in, const Tensor&) { return digamma(in); });
}

Tensor digamma(const Tensor& x) {
    return special_function("digamma", x, {SpecialFunction::Function::digamma},
                            [](const Tensor& in, const Tensor&) { return polygamma(1, in); });
}

Tensor polygamma(int n, const Tensor& x) {
    if (n < 0 || n > special::most_derivatives)
        throw InvalidArgument(
            fmt::format("polygamma: invalid order ({}); expected 0 to {}", n, special::most_derivatives));
    if (n == 0) return digamma(x);
    return special_function("polygamma", x, {SpecialFunction::Function::polygamma, n},
                            [n](const Tensor& in, const Tensor&) { return polygamma(n + 1, in); });
}

Tensor sinc(const Tensor& given) {
    const CheckedArgs call("sinc", {arg::real("the tensor", given)});
    const Tensor x = widened(call[0]) * std::numbers::pi, none = eq(x, 0), divisor = where(none, 1, x);
    // Its series has the gradient 0 at 0.
    return where(none, 1 - square(x) / 6, sin(divisor) / divisor).to(call[0].dtype());
}

}  // namespace lockstep
