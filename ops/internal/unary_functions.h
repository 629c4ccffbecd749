// Functions of one number with their derivatives: elementwise operations, of which every backend makes kernels. To add
// one: a struct and its name in the list, its function in functional.h and elementwise.cpp, and a line in
// tests/ops/op_table_elementwise.cpp.
//
//     struct Square {
//         static constexpr const char* name = "square";
//         static constexpr const char* backward_name = "square_backward";
//         static constexpr Saves saves = Saves::input;
//         template <class T> LOCKSTEP_HD_INLINE T value(T x) const { return x * x; }
//         /// Gradient of the loss, from `dy` and the saved values.
//         template <class T> LOCKSTEP_HD_INLINE T gradient(T dy, T x) const { return dy * (x * 2); }
//     };
//
// If a function has attributes, they are its members (double). A function that calls elementary functions is marked
// with `using Elementary = void`. The CPU computes it on vector registers as well (NumberLanes): there, T has
// arithmetic, `<`, `>`, `<=` and `choose`, and the elementary functions are found by their arguments. Gradients of
// gradients compute `gradient` on tensors (TensorNumber), which have `>=` as well: `choose`, not `?:`.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>

#include "lockstep/ops/internal/angles.h"
#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// Value that backward needs in addition to the gradient.
enum class Saves : std::uint8_t { nothing, input, output };

/// a or b. As a function, it takes registers of numbers as well as one number.
template <class T>
LOCKSTEP_HD_INLINE T choose(bool condition, T a, T b) {
    return condition ? a : b;
}

/// Whether F::value or F::gradient calls elementary functions.
template <class F>
concept Elementary = requires {
    typename F::Elementary;
};

namespace functor {

using angles::cos;
using angles::sin;
using angles::tan;
using std::acos;
using std::acosh;
using std::asin;
using std::asinh;
using std::atan;
using std::atanh;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::exp2;
using std::expm1;
using std::log;
using std::log10;
using std::log1p;
using std::log2;
using std::pow;
using std::sinh;
using std::sqrt;
using std::tanh;

/// Probability that a normally distributed number is below x. Without cancellation for negative x.
template <class T>
LOCKSTEP_HD_INLINE T normal_cdf(T x) {
    return T(0.5) * erfc(x * T(-M_SQRT1_2));
}

/// NaN is preserved and passes its gradient on, as in PyTorch.
struct Relu {
    static constexpr const char* name = "relu";
    static constexpr const char* backward_name = "relu_backward";
    static constexpr Saves saves = Saves::output;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return x < T(0) ? T(0) : x;
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return choose(y <= T(0), T(0), dy);
    }
};

struct Neg {
    static constexpr const char* name = "neg";
    static constexpr const char* backward_name = "neg_backward";
    static constexpr Saves saves = Saves::nothing;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return -x;
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T) const {
        return -dy;
    }
};

struct Exp {
    static constexpr const char* name = "exp";
    static constexpr const char* backward_name = "exp_backward";
    static constexpr Saves saves = Saves::output;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return exp(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return dy * y;
    }
};

struct Log {
    static constexpr const char* name = "log";
    static constexpr const char* backward_name = "log_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return log(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return dy / x;
    }
};

struct Sqrt {
    static constexpr const char* name = "sqrt";
    static constexpr const char* backward_name = "sqrt_backward";
    static constexpr Saves saves = Saves::output;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return std::sqrt(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return dy / (y * T(2));
    }
};

struct Square {
    static constexpr const char* name = "square";
    static constexpr const char* backward_name = "square_backward";
    static constexpr Saves saves = Saves::input;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return x * x;
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return dy * (x * T(2));
    }
};

/// -1, 0 or 1; 0 for NaN, as in PyTorch.
struct Sign {
    static constexpr const char* name = "sign";
    static constexpr const char* backward_name = "sign_backward";
    static constexpr Saves saves = Saves::nothing;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return static_cast<T>((x > T(0) ? 1 : 0) - (x < T(0) ? 1 : 0));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T, T) const {
        return T(0);
    }
};

struct Sigmoid {
    static constexpr const char* name = "sigmoid";
    static constexpr const char* backward_name = "sigmoid_backward";
    static constexpr Saves saves = Saves::output;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return T(1) / (T(1) + exp(-x));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return dy * (T(1) - y) * y;
    }
};

struct Tanh {
    static constexpr const char* name = "tanh";
    static constexpr const char* backward_name = "tanh_backward";
    static constexpr Saves saves = Saves::output;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return tanh(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return dy * (T(1) - y * y);
    }
};

/// x times the normal distribution up to x.
struct Gelu {
    static constexpr const char* name = "gelu";
    static constexpr const char* backward_name = "gelu_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return x * normal_cdf(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        const T density = exp(x * x * T(-0.5)) * T(0.5 * M_2_SQRTPI * M_SQRT1_2);
        return dy * (normal_cdf(x) + x * density);
    }
};

/// Its approximation by tanh (Hendrycks and Gimpel 2016).
struct GeluTanh {
    static constexpr const char* name = "gelu_tanh";
    static constexpr const char* backward_name = "gelu_tanh_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE static T inner(T x) {
        return T(M_SQRT2 * M_2_SQRTPI * 0.5) * (x + T(0.044715) * x * x * x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return T(0.5) * x * (T(1) + tanh(inner(x)));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        const T tanh_inner = tanh(inner(x));
        const T slope = T(M_SQRT2 * M_2_SQRTPI * 0.5) * (T(1) + T(3 * 0.044715) * x * x);
        return dy * (T(0.5) * (T(1) + tanh_inner) + T(0.5) * x * (T(1) - tanh_inner * tanh_inner) * slope);
    }
};

/// x times its sigmoid.
struct Silu {
    static constexpr const char* name = "silu";
    static constexpr const char* backward_name = "silu_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return x / (T(1) + exp(-x));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        const T sigmoid = T(1) / (T(1) + exp(-x));
        return dy * sigmoid * (T(1) + x * (T(1) - sigmoid));
    }
};

/// The logarithm of the sigmoid.
struct LogSigmoid {
    static constexpr const char* name = "logsigmoid";
    static constexpr const char* backward_name = "logsigmoid_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return choose(x > T(0), T(0), x) - log1p(exp(choose(x < T(0), x, -x)));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        const T power = exp(choose(x < T(0), x, -x));
        const T share = power / (T(1) + power);  // the smaller one of sigmoid(x) and sigmoid(-x)
        return dy * choose(x < T(0), T(1) - share, share);
    }
};

struct LeakyRelu {
    static constexpr const char* name = "leaky_relu";
    static constexpr const char* backward_name = "leaky_relu_backward";
    static constexpr Saves saves = Saves::input;
    double negative_slope = 0.01;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return x > T(0) ? x : x * static_cast<T>(negative_slope);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return choose(x > T(0), dy, dy * static_cast<T>(negative_slope));
    }
};

/// The gradient at 0 is 0.
struct Abs {
    static constexpr const char* name = "abs";
    static constexpr const char* backward_name = "abs_backward";
    static constexpr Saves saves = Saves::input;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return std::abs(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return choose(x > T(0), dy, choose(x < T(0), -dy, T(0)));
    }
};

struct Reciprocal {
    static constexpr const char* name = "reciprocal";
    static constexpr const char* backward_name = "reciprocal_backward";
    static constexpr Saves saves = Saves::output;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return T(1) / x;
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return -dy * y * y;
    }
};

struct Rsqrt {
    static constexpr const char* name = "rsqrt";
    static constexpr const char* backward_name = "rsqrt_backward";
    static constexpr Saves saves = Saves::output;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return T(1) / std::sqrt(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return T(-0.5) * dy * y * y * y;
    }
};

struct Floor {
    static constexpr const char* name = "floor";
    static constexpr const char* backward_name = "floor_backward";
    static constexpr Saves saves = Saves::nothing;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return std::floor(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T, T) const {
        return T(0);
    }
};

struct Ceil {
    static constexpr const char* name = "ceil";
    static constexpr const char* backward_name = "ceil_backward";
    static constexpr Saves saves = Saves::nothing;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return std::ceil(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T, T) const {
        return T(0);
    }
};

/// To the nearest integer, from the middle to the even one.
struct Round {
    static constexpr const char* name = "round";
    static constexpr const char* backward_name = "round_backward";
    static constexpr Saves saves = Saves::nothing;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return std::rint(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T, T) const {
        return T(0);
    }
};

struct Expm1 {
    static constexpr const char* name = "expm1";
    static constexpr const char* backward_name = "expm1_backward";
    static constexpr Saves saves = Saves::output;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return expm1(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T y) const {
        return dy * (y + T(1));
    }
};

struct Log1p {
    static constexpr const char* name = "log1p";
    static constexpr const char* backward_name = "log1p_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return log1p(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return dy / (x + T(1));
    }
};

struct Erf {
    static constexpr const char* name = "erf";
    static constexpr const char* backward_name = "erf_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return erf(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return dy * (T(M_2_SQRTPI) * exp(-x * x));
    }
};

struct Sin {
    static constexpr const char* name = "sin";
    static constexpr const char* backward_name = "sin_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return sin(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return dy * cos(x);
    }
};

struct Cos {
    static constexpr const char* name = "cos";
    static constexpr const char* backward_name = "cos_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return cos(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return -dy * sin(x);
    }
};

/// The remainder of a division whose quotient is rounded towards zero. Exact.
struct Fmod {
    static constexpr const char* name = "fmod";
    static constexpr const char* backward_name = "fmod_backward";
    static constexpr Saves saves = Saves::nothing;
    double divisor = 1;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return std::fmod(x, static_cast<T>(divisor));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T) const {
        return dy;
    }
};

/// `max` if that is less than `min`. The limits pass their gradient on.
struct Clamp {
    static constexpr const char* name = "clamp";
    static constexpr const char* backward_name = "clamp_backward";
    static constexpr Saves saves = Saves::input;
    double min = 0, max = 0;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        const T at_least = x < static_cast<T>(min) ? static_cast<T>(min) : x;
        return at_least > static_cast<T>(max) ? static_cast<T>(max) : at_least;
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return choose(x >= static_cast<T>(min), choose(x <= static_cast<T>(max), dy, T(0)), T(0));
    }
};

struct Pow {
    static constexpr const char* name = "pow";
    static constexpr const char* backward_name = "pow_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    double exponent = 1;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        return power(x, exponent);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        return exponent == 0 ? T(0) : dy * (static_cast<T>(exponent) * power(x, exponent - 1));
    }

private:
    /// Powers that are products, as in PyTorch, or the general function.
    template <class T>
    LOCKSTEP_HD_INLINE static T power(T x, double exponent) {
        if (exponent == 1) return x;
        if (exponent == 2) return x * x;
        if (exponent == 3) return x * x * x;
        if (exponent == -2) return T(1) / (x * x);
        return pow(x, static_cast<T>(exponent));
    }
};

/// Functions that networks rarely compute. One kernel has all of them, because a kernel for each of them would take as
/// long to compile as all others together.
enum class Transcendental : std::uint8_t { log2, log10, exp2, tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh };

struct TranscendentalFunction {
    static constexpr const char* name = "transcendental";
    static constexpr const char* backward_name = "transcendental_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    double function = 0;  ///< a Transcendental
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        switch (static_cast<Transcendental>(static_cast<int>(function))) {
            case Transcendental::log2: return log2(x);
            case Transcendental::log10: return log10(x);
            case Transcendental::exp2: return exp2(x);
            case Transcendental::tan: return tan(x);
            case Transcendental::asin: return asin(x);
            case Transcendental::acos: return acos(x);
            case Transcendental::atan: return atan(x);
            case Transcendental::sinh: return sinh(x);
            case Transcendental::cosh: return cosh(x);
            case Transcendental::asinh: return asinh(x);
            case Transcendental::acosh: return acosh(x);
            case Transcendental::atanh: break;
        }
        return atanh(x);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        switch (static_cast<Transcendental>(static_cast<int>(function))) {
            case Transcendental::log2: return dy / (x * T(M_LN2));
            case Transcendental::log10: return dy / (x * T(M_LN10));
            case Transcendental::exp2: return dy * (exp2(x) * T(M_LN2));
            case Transcendental::tan: {
                const T y = tan(x);
                return dy * (T(1) + y * y);
            }
            case Transcendental::asin: return dy / sqrt(T(1) - x * x);
            case Transcendental::acos: return -dy / sqrt(T(1) - x * x);
            case Transcendental::atan: return dy / (x * x + T(1));
            case Transcendental::sinh: return dy * cosh(x);
            case Transcendental::cosh: return dy * sinh(x);
            case Transcendental::asinh: return dy / sqrt(x * x + T(1));
            case Transcendental::acosh: return dy / sqrt(x * x - T(1));
            case Transcendental::atanh: break;
        }
        return dy / (T(1) - x * x);
    }
};

/// Functions with several formulas, and their attributes a, b and c. As with Transcendental, one kernel has all of
/// them.
enum class Piecewise : std::uint8_t {
    elu,          ///< c * x for positive x, otherwise c * a * (exp(b * x) - 1)
    softplus,     ///< log(1 + exp(a * x)) / a, or x where a * x > b
    mish,         ///< x * tanh(softplus(x))
    hardswish,    ///< x * hardsigmoid(x)
    hardsigmoid,  ///< (x + 3) / 6 in [0, 1]
    limited,      ///< x in [a, b]; the gradient at the limits and of NaN is 0
    huber         ///< b * x * x, or c * (|x| - a / 2) where |x| > a
};

struct PiecewiseFunction {
    static constexpr const char* name = "piecewise";
    static constexpr const char* backward_name = "piecewise_backward";
    static constexpr Saves saves = Saves::input;
    using Elementary = void;
    double function = 0;  ///< a Piecewise
    double a = 0, b = 0, c = 0;
    template <class T>
    LOCKSTEP_HD_INLINE T value(T x) const {
        switch (chosen()) {
            case Piecewise::elu: return choose(x > T(0), x * T(c), expm1(choose(x > T(0), T(0), x) * T(b)) * T(a * c));
            case Piecewise::softplus: {
                const T scaled = x * T(a), tail = log1p(exp(choose(scaled < T(0), scaled, -scaled)));
                return choose(scaled > T(b), x, (choose(scaled > T(0), scaled, T(0)) + tail) * T(1 / a));
            }
            case Piecewise::mish: {
                const T product = mish_product(mish_power(x));
                return x * (product / (product + T(2)));
            }
            case Piecewise::hardswish:
                return choose(x < T(-3), x * T(0), choose(x > T(3), x, x * (x + T(3)) * T(1.0 / 6)));
            case Piecewise::hardsigmoid:
                return choose(x < T(-3), T(0), choose(x > T(3), T(1), (x + T(3)) * T(1.0 / 6)));
            case Piecewise::limited: return choose(x < T(a), T(a), choose(x > T(b), T(b), x));
            case Piecewise::huber: break;
        }
        const T size = choose(x < T(0), -x, x);
        return choose(size > T(a), (size - T(0.5 * a)) * T(c), x * x * T(b));
    }
    template <class T>
    LOCKSTEP_HD_INLINE T gradient(T dy, T x) const {
        switch (chosen()) {
            case Piecewise::elu:
                return choose(x <= T(0), dy * (exp(choose(x <= T(0), x, T(0)) * T(b)) * T(a * b * c)), dy * T(c));
            case Piecewise::softplus: {
                const T scaled = x * T(a), power = exp(choose(scaled < T(0), scaled, -scaled));
                const T share = power / (T(1) + power);  // the smaller one of sigmoid(scaled) and sigmoid(-scaled)
                return choose(scaled > T(b), dy, dy * choose(scaled < T(0), share, T(1) - share));
            }
            case Piecewise::mish: {
                const T power = mish_power(x), product = mish_product(power), sum = product + T(2);
                const T slope = x * T(4) * power * (power + T(1)) / (sum * sum);
                // Infinity has the gradient NaN, as in PyTorch.
                return dy * (product / sum + choose(x > T(20), x * T(0), slope));
            }
            case Piecewise::hardswish:
                return choose(x < T(-3), T(0), choose(x > T(3), dy, dy * (x * T(1.0 / 3) + T(0.5))));
            case Piecewise::hardsigmoid: return choose(x > T(-3), choose(x < T(3), dy * T(1.0 / 6), T(0)), T(0));
            case Piecewise::limited: return choose(x > T(a), choose(x < T(b), dy, T(0)), T(0));
            case Piecewise::huber: break;
        }
        return choose(x > T(a), dy * T(c), choose(x < T(-a), dy * T(-c), dy * (x * T(2 * b))));
    }

private:
    LOCKSTEP_HD_INLINE Piecewise chosen() const { return static_cast<Piecewise>(static_cast<int>(function)); }
    /// exp(x), from 20 on exp(20).
    template <class T>
    LOCKSTEP_HD_INLINE static T mish_power(T x) {
        return exp(choose(x > T(20), T(20), x));
    }
    /// With (1 + exp(x))^2 = 1 + product, tanh(log(1 + exp(x))) is product / (product + 2).
    template <class T>
    LOCKSTEP_HD_INLINE static T mish_product(T power) {
        return power * (power + T(2));
    }
};

}  // namespace functor

using UnaryFunctions =
    std::tuple<functor::Relu, functor::Neg, functor::Exp, functor::Log, functor::Sqrt, functor::Square, functor::Sign,
               functor::Sigmoid, functor::Tanh, functor::Gelu, functor::GeluTanh, functor::Silu, functor::LogSigmoid,
               functor::LeakyRelu, functor::Abs, functor::Reciprocal, functor::Rsqrt, functor::Floor, functor::Ceil,
               functor::Round, functor::Expm1, functor::Log1p, functor::Erf, functor::Clamp, functor::Pow, functor::Sin,
               functor::Cos, functor::Fmod, functor::TranscendentalFunction, functor::PiecewiseFunction>;

/// in: x (any layout; opaque is kept); out: y
template <class F>
struct Unary {
    static constexpr const char* name = F::name;
    static constexpr bool is_elementwise = true;
    F function;
};
/// in: dy, and x or y as the function saves it (any layout, to which dy is converted); out: dx
template <class F>
struct UnaryBackward {
    static constexpr const char* name = F::backward_name;
    static constexpr bool is_elementwise = true;
    F function;
};

}  // namespace lockstep
