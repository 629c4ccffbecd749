// Functions of every element, with gradients; functional.h has the rules for all functions.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

// ---- elementwise ------------------------------------------------------------------------------------------------

/// Inputs are broadcast (numpy's rule) and converted to their common dtype (torch.result_type). Integers wrap around in
/// sums, differences and products; a quotient of integers is f32. Sums and products of bool are "or" and "and"; bool
/// has no differences.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }

/// A number that is combined with a tensor (torch's Scalar); remembers whether it was written as an integer or a bool.
class Scalar {
public:
    template <class T>
    requires std::is_arithmetic_v<T> Scalar(T value)  // NOLINT(google-explicit-constructor): `x * 2`
        : value_(static_cast<double>(value)), integer_(std::is_integral_v<T>), bool_(std::is_same_v<T, bool>) {}
    double value() const { return value_; }
    /// Also of a bool.
    bool is_integer() const { return integer_; }
    bool is_bool() const { return bool_; }

private:
    double value_;
    bool integer_, bool_;
};

/// Operators with a number, which becomes part of the program while `forward` is traced. It is rounded to the
/// tensor's dtype. With an integer tensor, an integer (below 2^53) gives integers, with a tensor of bool i64; any other
/// number, and every division, gives f32.
Tensor operator+(const Tensor& a, Scalar b);
Tensor operator-(const Tensor& a, Scalar b);
Tensor operator*(const Tensor& a, Scalar b);
/// Multiplies by 1 / b, unless that is too large or too small for the dtype.
Tensor operator/(const Tensor& a, Scalar b);
/// The number is the left operand.
Tensor operator-(Scalar a, const Tensor& b);
Tensor operator/(Scalar a, const Tensor& b);
inline Tensor operator+(Scalar a, const Tensor& b) { return b + a; }
inline Tensor operator*(Scalar a, const Tensor& b) { return b * a; }

// Functions of every element. Those whose values for integers are integers (neg, square, sign, abs, floor, ceil, round,
// trunc, clamp, pow, relu) give integers for them, and clamp and pow give i64 for bool. Other mathematical functions
// convert integers and bool to f32.

/// -x, e^x, and the natural logarithm.
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
/// Logarithms to the bases 2 and 10, and 2^x.
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
Tensor exp2(const Tensor& x);
/// Square root, and x^2.
Tensor sqrt(const Tensor& x);
Tensor square(const Tensor& x);
/// -1, 0 or 1.
Tensor sign(const Tensor& x);
/// `sign`, by its other name for real numbers.
Tensor sgn(const Tensor& x);
/// Whether the sign of x is negative, also of -0 and NaN, as bool. Any dtype. Not differentiable.
Tensor signbit(const Tensor& x);
/// |x|.
Tensor abs(const Tensor& x);
/// 1 / x.
Tensor reciprocal(const Tensor& x);
/// 1 / sqrt(x).
Tensor rsqrt(const Tensor& x);
/// The largest integer that is not above x, and the smallest one that is not below x.
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
/// The nearest integer; halfway between two, the even one.
Tensor round(const Tensor& x);
/// exp(x) - 1 and log(1 + x), exact for small x.
Tensor expm1(const Tensor& x);
Tensor log1p(const Tensor& x);
/// The error function.
Tensor erf(const Tensor& x);
/// 1 - erf(x), exact for large x, and the inverse of erf.
Tensor erfc(const Tensor& x);
Tensor erfinv(const Tensor& x);
/// The logarithm of |gamma(x)|, its derivative, and the n-th derivative of digamma; n is 0 to 30.
Tensor lgamma(const Tensor& x);
Tensor digamma(const Tensor& x);
Tensor polygamma(int n, const Tensor& x);
/// sin(pi x) / (pi x), and 1 at 0.
Tensor sinc(const Tensor& x);
/// Functions of angles in radians, and their inverses.
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tan(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
/// Hyperbolic functions, and their inverses.
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor asinh(const Tensor& x);
Tensor acosh(const Tensor& x);
Tensor atanh(const Tensor& x);
/// x rounded towards 0, and x minus that.
Tensor trunc(const Tensor& x);
Tensor frac(const Tensor& x);
/// The exact remainder of x / divisor, with the sign of x; NaN if the divisor is 0, which with integers is an error
/// that the first read of the result throws. The divisor becomes part of the program while `forward` is traced.
Tensor fmod(const Tensor& x, Scalar divisor);
/// The remainder with the sign of the divisor.
Tensor remainder(const Tensor& x, Scalar divisor);
/// The same with a tensor of divisors; the tensors are broadcast and converted as by `add`.
Tensor fmod(const Tensor& x, const Tensor& divisor);
Tensor remainder(const Tensor& x, const Tensor& divisor);
/// Limits x. A missing limit does not apply; `max` applies where it is less than `min`. Throws InvalidArgument if both
/// are missing.
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max = std::nullopt);
/// Limits that are tensors, broadcast and converted as by `add`; an undefined one does not apply. NaN wins.
Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max);
/// x to a power, which becomes part of the program while `forward` is traced. With integers, an integer exponent must
/// not be negative.
Tensor pow(const Tensor& x, Scalar exponent);
/// base to the power of exponent. The tensors are broadcast and converted as by `add`. Negative powers of integers are
/// rounded towards 0, and large ones wrap around.
Tensor pow(const Tensor& base, const Tensor& exponent);
Tensor pow(Scalar base, const Tensor& exponent);
/// The angle, in (-pi, pi], of the point (x, y), and the length of the vector (a, b). The tensors are broadcast and
/// converted as by `div`.
Tensor atan2(const Tensor& y, const Tensor& x);
Tensor hypot(const Tensor& a, const Tensor& b);
/// a with the sign of b. The tensors are broadcast and converted as by `div`.
Tensor copysign(const Tensor& a, const Tensor& b);
/// The larger and the smaller number; if one is NaN, the other one (`maximum` returns NaN). The tensors are
/// broadcast and converted as by `div`.
Tensor fmax(const Tensor& a, const Tensor& b);
Tensor fmin(const Tensor& a, const Tensor& b);
/// Rounding of a quotient: towards 0, or down.
enum class RoundingMode : std::uint8_t { trunc, floor };
/// a / b, rounded. The tensors are broadcast and converted as by `add`. A quotient of integers is an integer; then a
/// divisor of 0 is an error, which the first read of the result throws. The gradient is 0.
Tensor div(const Tensor& a, const Tensor& b, RoundingMode rounding_mode);
Tensor div(const Tensor& a, Scalar b, RoundingMode rounding_mode);
/// div(a, b, RoundingMode::floor). Not differentiable.
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, Scalar b);
/// -x.
inline Tensor operator-(const Tensor& x) { return neg(x); }
/// Activation functions of torch.nn.functional.
Tensor relu(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
/// `tanh` is approximate="tanh" of torch.nn.functional.gelu.
enum class GeluForm : std::uint8_t { exact, tanh };
/// Activation functions of torch.nn.functional.
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::exact);
Tensor silu(const Tensor& x);
Tensor logsigmoid(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// log(1 + exp(beta x)) / beta, or x if beta x exceeds the threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
/// Activation functions of torch.nn.functional.
Tensor elu(const Tensor& x, double alpha = 1);
Tensor celu(const Tensor& x, double alpha = 1);
Tensor selu(const Tensor& x);
/// Limits x. Unlike that of `clamp`, the gradient is 0 at the limits.
Tensor hardtanh(const Tensor& x, double min_val = -1, double max_val = 1);
/// Activation functions of torch.nn.functional.
Tensor relu6(const Tensor& x);
Tensor hardsigmoid(const Tensor& x);
Tensor hardswish(const Tensor& x);
Tensor mish(const Tensor& x);
Tensor softsign(const Tensor& x);
/// x, or weight x where x is not positive; weight: one number, or one for each channel of x (N, C, ...).
Tensor prelu(const Tensor& x, const Tensor& weight);
/// The first half of x along `dim`, times the sigmoid of the second half.
Tensor glu(const Tensor& x, int dim = -1);
/// x where it exceeds the threshold, `value` elsewhere.
Tensor threshold(const Tensor& x, double threshold, double value);
/// x where |x| exceeds lambd, 0 elsewhere; softshrink also moves x by lambd towards 0.
Tensor hardshrink(const Tensor& x, double lambd = 0.5);
Tensor softshrink(const Tensor& x, double lambd = 0.5);
/// x - tanh(x).
Tensor tanhshrink(const Tensor& x);
/// log(x / (1 - x)) of x limited to [eps, 1 - eps], if `eps` is given.
Tensor logit(const Tensor& x, std::optional<double> eps = std::nullopt);
/// log(exp(a) + exp(b)), without overflow; the tensors are broadcast.
Tensor logaddexp(const Tensor& a, const Tensor& b);
/// log2(2^a + 2^b), without overflow; the tensors are broadcast.
Tensor logaddexp2(const Tensor& a, const Tensor& b);
/// a log(b), and 0 where a is 0 unless b is NaN; the tensors are broadcast.
Tensor xlogy(const Tensor& a, const Tensor& b);
/// start + weight (end - start); the tensors are broadcast.
Tensor lerp(const Tensor& start, const Tensor& end, double weight);
Tensor lerp(const Tensor& start, const Tensor& end, const Tensor& weight);
/// x + value a b, and x + value a / b; the tensors are broadcast.
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);
/// x with `nan` in place of NaN, and `posinf` and `neginf` in place of infinities; by default the largest and the
/// smallest number of the dtype.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> posinf = std::nullopt,
                  std::optional<double> neginf = std::nullopt);
/// 0 where x is negative, 1 where it is positive, `values` where it is 0; NaN remains. The tensors are broadcast and
/// converted as by `add`. Not differentiable.
Tensor heaviside(const Tensor& x, const Tensor& values);
/// Degrees to radians, and radians to degrees.
Tensor deg2rad(const Tensor& x);
Tensor rad2deg(const Tensor& x);
/// Whether |a - b| <= atol + rtol |b|, as bool; equal infinities are close, and NaN only if `equal_nan`. The tensors
/// are broadcast, and converted as by `add`. Not differentiable.
Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
/// Whether an element is neither infinite nor NaN, is NaN, or is infinite, as bool. Not differentiable.
Tensor isfinite(const Tensor& x);
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);

// ---- comparison and choice --------------------------------------------------------------------------------------

/// Comparisons of all dtypes, as bool: equal, unequal, less than, less or equal, greater than, greater or equal. Inputs
/// are broadcast, and compared in their common dtype (torch.result_type). NaN is unequal to everything. With a tensor
/// of integers, a number is compared in the tensor's dtype, or in i64 if that does not have it. If the number is not an
/// integer, both are compared in f32. Not differentiable.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor ne(const Tensor& a, Scalar b);
Tensor lt(const Tensor& a, Scalar b);
Tensor le(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, Scalar b);
Tensor ge(const Tensor& a, Scalar b);
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
inline Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }

/// Logical functions of tensors of any dtype, as bool. Every number except 0 counts as true.
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);

/// a where `condition` (bool) holds, b elsewhere, all broadcast together. Any dtypes, converted to the common one; a
/// number gets that of the tensor, or one to which it is promoted as by operators.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, Scalar a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
/// x with `value`, which its dtype must have, where `mask` (bool) holds; the two are broadcast together.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);
/// The larger or smaller of two numbers, broadcast and converted as by `add`; NaN if one of them is NaN. The gradient
/// of equal numbers is half to each.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

}  // namespace lockstep
