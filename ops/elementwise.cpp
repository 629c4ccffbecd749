#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/integer_functions.h"
#include "lockstep/ops/internal/piecewise.h"
#include "lockstep/ops/internal/tensor_number.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

template <class F>
Tensor binary(const Tensor& given_a, const Tensor& given_b) {
    constexpr const char* name = F::name;
    constexpr bool multiplies = std::is_same_v<F, functor::Mul>, divides = std::is_same_v<F, functor::Div>;
    const CheckedArgs call(name,
                           {arg::promoted("the first tensor", given_a), arg::promoted("the second tensor", given_b)});
    const Tensor &a = call[0], &b = call[1];
    if (a.dtype() == DType::boolean) return multiplies ? logical_and(a, b) : logical_or(a, b);
    const Tensor y = apply_one(Binary<F>{}, {a, b}, broadcast_meta(name, a.dtype(), {a, b}));
    if (!needs_autograd({a, b})) return y;

    const Origin from_a(a), from_b(b);
    SavedTensor first, second, result;
    if (multiplies && from_b.wanted) first = SavedTensor(a, name);
    if (divides || (multiplies && from_a.wanted)) second = SavedTensor(b, name);
    if (divides && from_b.wanted) result = SavedTensor(y, name, SavedTensor::Role::output);
    add_autograd_node(name, {a, b}, {y}, BackwardFunction::composed([=](const std::vector<Tensor>& gradients) {
                          const Tensor& dy = gradients[0];
                          std::vector<Tensor> result_gradients(2);
                          Tensor& da = result_gradients[0];
                          Tensor& db = result_gradients[1];
                          if constexpr (multiplies) {
                              if (from_a.wanted) da = from_a.reduce(mul(dy, second.get()));
                              if (from_b.wanted) db = from_b.reduce(mul(dy, first.get()));
                          } else if constexpr (divides) {
                              if (from_a.wanted) da = from_a.reduce(div(dy, second.get()));
                              // In PyTorch's order: dy / b may be infinite where a / b is 0.
                              if (from_b.wanted) db = from_b.reduce(neg(mul(dy, div(result.get(), second.get()))));
                          } else {
                              if (from_a.wanted) da = from_a.reduce(dy);
                              if (from_b.wanted) db = from_b.reduce(std::is_same_v<F, functor::Add> ? dy : neg(dy));
                          }
                          return result_gradients;
                      }));
    return y;
}

/// scale * x + shift.
Tensor affine(const char* name, const Tensor& given, double scale, double shift) {
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    const Tensor y = apply_one(Affine{scale, shift}, {x}, like(x));
    if (needs_autograd({x}))
        add_autograd_node(
            name, {x}, {y}, BackwardFunction::composed([name, scale](const auto& gradients) {
                return std::vector<Tensor>{scale == 1 ? gradients[0] : affine(name, gradients[0], scale, no_shift)};
            }));
    return y;
}

/// `x`, converted to f32 if it is not a floating tensor.
Tensor as_float(const Tensor& x) { return x.defined() && !is_floating(x.dtype()) ? x.to(DType::f32) : x; }

/// `x`, converted to i64 if it is of bool and is combined with a number of another type.
Tensor as_number(const Tensor& x, Scalar number) {
    return x.defined() && x.dtype() == DType::boolean && !number.is_bool() ? x.to(DType::i64) : x;
}

/// Throws InvalidArgument for bool, of which PyTorch has no differences.
void require_numbers(const char* name, const Tensor& x) {
    if (x.defined() && x.dtype() == DType::boolean)
        throw InvalidArgument(fmt::format(
            "{}: a tensor has dtype bool; expected numbers (use logical_not to invert a mask, or .to(dtype))", name));
}

/// The number as a tensor for an operation with `other`.
Tensor number(const char* name, Scalar value, const Tensor& given) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& other = call[0];
    if (!integers::is_one(other)) return Tensor::full({}, value.value(), other.dtype(), other.device());
    checks::exact_number(name, value.value(), other.dtype());
    const auto whole = static_cast<std::int64_t>(value.value());
    const double wrapped = other.dtype() == DType::u8    ? static_cast<std::uint8_t>(whole)
                           : other.dtype() == DType::i32 ? static_cast<std::int32_t>(whole)
                                                         : value.value();
    return Tensor::full({}, wrapped, other.dtype(), other.device());
}

/// Whether the sum or product of a number and a tensor is of integers.
bool stay_integers(const Tensor& x, Scalar number) {
    return x.defined() && !is_floating(x.dtype()) && number.is_integer();
}

/// Whether a product with 1 / b is as good as a quotient: not if the reciprocal overflows or loses digits.
bool has_reciprocal(double b, DType dtype) {
    return dtype == DType::f64 ? std::isnormal(1 / b) : std::isnormal(static_cast<float>(1 / b));
}

/// The gradient of a function of every element, computed by functions with gradients.
template <class F>
Tensor differentiable_gradient(const F& function, const Tensor& dy, const Tensor& saved) {
    const Tensor upstream = widened(dy);
    const TensorNumber known = saved.defined() ? TensorNumber(widened(saved)) : TensorNumber(0);
    const Tensor dx = function.gradient(TensorNumber(upstream), known).tensor(upstream);
    return tagged(dx.to(dy.dtype()), dy.is_batch());
}

/// A function of every element.
template <class F>
Tensor unary(const Tensor& given, const F& function = {}, CheckedArgs::Kind kind = CheckedArgs::Kind::floating) {
    const CheckedArgs call(F::name, {{kind, "the tensor", given}});
    const Tensor& x = call[0];
    const Tensor y = apply_one(Unary<F>{function}, {x}, like(x));
    if (!needs_autograd({x})) return y;
    SavedTensor saved;
    if (F::saves == Saves::input) saved = SavedTensor(x, F::name);
    if (F::saves == Saves::output) saved = SavedTensor(y, F::name, SavedTensor::Role::output);
    add_autograd_node(F::name, {x}, {y}, BackwardFunction::composed([function, saved, dx = like(x)](const auto& dy) {
                          const Tensor known = F::saves == Saves::nothing ? Tensor() : saved.get();
                          if (grad_enabled())
                              return std::vector<Tensor>{differentiable_gradient(function, dy[0], known)};
                          std::vector<Tensor> in{dy[0]};
                          if (F::saves != Saves::nothing) in.push_back(known);
                          return std::vector<Tensor>{apply_one(UnaryBackward<F>{function}, in, dx)};
                      }));
    return y;
}

/// A mathematical function, also of integers and bool as f32.
template <class F>
Tensor of_real(const Tensor& x) {
    return unary<F>(x, {}, CheckedArgs::Kind::real);
}

/// A function that does not change integers.
template <class F>
Tensor rounded(const Tensor& x) {
    return integers::is_one(x) ? x.clone() : unary<F>(x);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return binary<functor::Add>(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) {
    require_numbers("sub", a);
    require_numbers("sub", b);
    return binary<functor::Sub>(a, b);
}
Tensor mul(const Tensor& a, const Tensor& b) { return binary<functor::Mul>(a, b); }
Tensor div(const Tensor& a, const Tensor& b) {
    const CheckedArgs call("div", {arg::real("the first tensor", a), arg::real("the second tensor", b)});
    return binary<functor::Div>(call[0], call[1]);
}

Tensor operator+(const Tensor& a, Scalar b) {
    if (!stay_integers(a, b)) return affine("add", as_float(a), 1, b.value());
    const Tensor x = as_number(a, b);
    return add(x, number("add", b, x));
}
Tensor operator-(const Tensor& a, Scalar b) {
    require_numbers("sub", a);
    return stay_integers(a, b) ? sub(a, number("sub", b, a)) : affine("sub", as_float(a), 1, -b.value());
}
Tensor operator*(const Tensor& a, Scalar b) {
    if (!stay_integers(a, b)) return affine("mul", as_float(a), b.value(), no_shift);
    const Tensor x = as_number(a, b);
    return mul(x, number("mul", b, x));
}
Tensor operator/(const Tensor& a, Scalar b) {
    const CheckedArgs call("div", {arg::real("the tensor", a)});
    const Tensor& x = call[0];
    if (has_reciprocal(b.value(), x.dtype())) return affine("div", x, 1 / b.value(), no_shift);
    return div(x, number("div", b, x));
}
Tensor operator-(Scalar a, const Tensor& b) {
    require_numbers("sub", b);
    return stay_integers(b, a) ? sub(number("sub", a, b), b) : affine("sub", as_float(b), -1, a.value());
}
Tensor operator/(Scalar a, const Tensor& b) {
    const Tensor x = as_float(b);
    return div(number("div", a, x), x);
}

Tensor neg(const Tensor& x) {
    require_numbers("neg", x);
    return integers::is_one(x) ? integers::neg(x) : unary<functor::Neg>(x);
}
Tensor exp(const Tensor& x) { return of_real<functor::Exp>(x); }
Tensor log(const Tensor& x) { return of_real<functor::Log>(x); }
Tensor sqrt(const Tensor& x) { return of_real<functor::Sqrt>(x); }
Tensor square(const Tensor& x) { return integers::is_one(x) ? x * x : unary<functor::Square>(x); }
Tensor sign(const Tensor& x) { return integers::is_one(x) ? integers::sign(x) : unary<functor::Sign>(x); }
Tensor abs(const Tensor& x) { return integers::is_one(x) ? integers::abs(x) : unary<functor::Abs>(x); }
Tensor reciprocal(const Tensor& x) { return of_real<functor::Reciprocal>(x); }
Tensor rsqrt(const Tensor& x) { return of_real<functor::Rsqrt>(x); }
Tensor floor(const Tensor& x) { return rounded<functor::Floor>(x); }
Tensor ceil(const Tensor& x) { return rounded<functor::Ceil>(x); }
Tensor round(const Tensor& x) { return rounded<functor::Round>(x); }
Tensor expm1(const Tensor& x) { return of_real<functor::Expm1>(x); }
Tensor log1p(const Tensor& x) { return of_real<functor::Log1p>(x); }
Tensor erf(const Tensor& x) { return of_real<functor::Erf>(x); }
Tensor sin(const Tensor& x) { return of_real<functor::Sin>(x); }
Tensor cos(const Tensor& x) { return of_real<functor::Cos>(x); }

namespace {

Tensor transcendental(const char* name, const Tensor& x, functor::Transcendental function) {
    const CheckedArgs call(name, {arg::real("the tensor", x)});
    return unary(call[0], functor::TranscendentalFunction{static_cast<double>(function)});
}

}  // namespace

Tensor log2(const Tensor& x) { return transcendental("log2", x, functor::Transcendental::log2); }
Tensor log10(const Tensor& x) { return transcendental("log10", x, functor::Transcendental::log10); }
Tensor exp2(const Tensor& x) { return transcendental("exp2", x, functor::Transcendental::exp2); }
Tensor tan(const Tensor& x) { return transcendental("tan", x, functor::Transcendental::tan); }
Tensor asin(const Tensor& x) { return transcendental("asin", x, functor::Transcendental::asin); }
Tensor acos(const Tensor& x) { return transcendental("acos", x, functor::Transcendental::acos); }
Tensor atan(const Tensor& x) { return transcendental("atan", x, functor::Transcendental::atan); }
Tensor sinh(const Tensor& x) { return transcendental("sinh", x, functor::Transcendental::sinh); }
Tensor cosh(const Tensor& x) { return transcendental("cosh", x, functor::Transcendental::cosh); }
Tensor asinh(const Tensor& x) { return transcendental("asinh", x, functor::Transcendental::asinh); }
Tensor acosh(const Tensor& x) { return transcendental("acosh", x, functor::Transcendental::acosh); }
Tensor atanh(const Tensor& x) { return transcendental("atanh", x, functor::Transcendental::atanh); }
Tensor fmod(const Tensor& x, Scalar divisor) {
    const ApiScope call("fmod");
    if (stay_integers(x, divisor)) return fmod(x, integers::number("fmod", divisor, x));
    return unary(as_float(x), functor::Fmod{divisor.value()});
}
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max) {
    const ApiScope call("clamp");
    if (!min && !max) throw InvalidArgument("clamp: no limit; expected `min`, `max` or both");
    const bool whole = (!min || min->is_integer()) && (!max || max->is_integer());
    if (whole && x.defined() && !is_floating(x.dtype()))
        return integers::clamp(as_number(x, min ? *min : *max), min, max);
    constexpr double none = std::numeric_limits<double>::infinity();
    return unary(as_float(x), functor::Clamp{min ? min->value() : -none, max ? max->value() : none});
}
Tensor pow(const Tensor& x, Scalar exponent) {
    const ApiScope call("pow");
    const double power = exponent.value();
    if (stay_integers(x, exponent)) return integers::pow(as_number(x, exponent), static_cast<std::int64_t>(power));
    const Tensor base = as_float(x);
    // As in PyTorch, whose special values are those of the functions.
    if (power == 0.5) return sqrt(base);
    if (power == 2) return square(base);
    if (power == -0.5) return rsqrt(base);
    if (power == -1) return reciprocal(base);
    return unary(base, functor::Pow{power});
}
Tensor relu(const Tensor& x) { return integers::is_one(x) ? integers::relu(x) : unary<functor::Relu>(x); }
Tensor sigmoid(const Tensor& x) { return of_real<functor::Sigmoid>(x); }
Tensor tanh(const Tensor& x) { return of_real<functor::Tanh>(x); }
Tensor gelu(const Tensor& x, GeluForm form) {
    const ApiScope call("gelu");
    return form == GeluForm::exact ? unary<functor::Gelu>(x) : unary<functor::GeluTanh>(x);
}
Tensor silu(const Tensor& x) { return unary<functor::Silu>(x); }
Tensor logsigmoid(const Tensor& x) { return unary<functor::LogSigmoid>(x); }
Tensor leaky_relu(const Tensor& x, double negative_slope) { return unary(x, functor::LeakyRelu{negative_slope}); }

Tensor piecewise(const char* name, const Tensor& x, functor::Piecewise function, double a, double b, double c) {
    const CheckedArgs call(name, {arg::floating("the tensor", x)});
    return unary(call[0], functor::PiecewiseFunction{static_cast<double>(function), a, b, c});
}

Tensor isfinite(const Tensor& given) {
    const CheckedArgs call("isfinite", {arg::real("input", given)});
    const Tensor x = call[0].detach();
    return apply_one(IsFinite{}, {x}, TensorMeta::contiguous(DType::boolean, x.shape(), call[0].is_batch()));
}

}  // namespace lockstep
