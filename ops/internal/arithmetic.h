// Operations on a single element: the arithmetic that CPU loops and CUDA kernels share.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/operation.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

// Functions of two numbers: operations on the elements of two tensors, of which every backend makes kernels. To add
// one: a struct and its name in the list, its function in functional.h with its gradient in elementwise.cpp or
// selection.cpp, and a line in tests/ops/op_table_elementwise.cpp.

/// Type in which numbers of type T are added and multiplied: integers wrap around, which is undefined for signed types.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

namespace functor {

struct Add {
    static constexpr const char* name = "add";
    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    }
};

struct Sub {
    static constexpr const char* name = "sub";
    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
    }
};

struct Mul {
    static constexpr const char* name = "mul";
    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
};

/// Not for integers: functions convert them to floats first.
struct Div {
    static constexpr const char* name = "div";
    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        return static_cast<T>(a / b);
    }
};

/// The first of two equal numbers; NaN if one of them is NaN.
struct Maximum {
    static constexpr const char* name = "maximum";
    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        return a != a || a >= b ? a : b;
    }
};

struct Minimum {
    static constexpr const char* name = "minimum";
    template <class T>
    LOCKSTEP_HD_INLINE T value(T a, T b) const {
        return a != a || a <= b ? a : b;
    }
};

}  // namespace functor

using BinaryFunctions =
    std::tuple<functor::Add, functor::Sub, functor::Mul, functor::Div, functor::Maximum, functor::Minimum>;

/// in: a, b (broadcast together, any strides; all dtypes but bool); out: y. A product of an opaque 4-D `a` and a `b` of
/// shape (N, C, 1, 1) keeps the layout of `a`; equal opaque layouts are kept as well.
template <class F>
struct Binary {
    static constexpr const char* name = F::name;
    static constexpr bool is_elementwise = true;
};

}  // namespace lockstep

namespace lockstep::element {

template <class T>
LOCKSTEP_HD_INLINE T affine(T x, T scale, T shift) {
    using W = Wrapping<T>;
    return static_cast<T>(static_cast<W>(scale) * static_cast<W>(x) + static_cast<W>(shift));
}

/// Element i of an operand, or `otherwise` if it is missing (null).
template <class T>
LOCKSTEP_HD_INLINE T or_else(const T* operand, std::int64_t i, T otherwise) {
    return operand != nullptr ? operand[i] : otherwise;
}

/// Whether max pooling replaces `best` by `x`; NaN wins, as in PyTorch.
template <class T>
LOCKSTEP_HD_INLINE bool pool_takes(T x, T best) {
    return x > best || x != x;
}

/// Count, mean and sum of squared deviations of some values of one channel.
template <class T>
struct Moments {
    T count = 0, mean = 0, m2 = 0;
};
/// Moments of both groups of values together (Chan, Golub, LeVeque 1979).
template <class T>
LOCKSTEP_HD_INLINE Moments<T> pool(const Moments<T>& a, const Moments<T>& b) {
    const T count = a.count + b.count;
    if (count == T(0)) return {};
    const T delta = b.mean - a.mean;
    const T share = b.count / count;
    return {count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share};
}

/// 1 / sqrt(variance + eps) of a channel; biased variance.
template <class T>
LOCKSTEP_HD_INLINE T inverse_deviation(T m2, T count, double eps) {
    return T(1) / std::sqrt(m2 / count + static_cast<T>(eps));
}

/// batch_norm_normalize; scale = weight * inverse_deviation.
template <class T>
LOCKSTEP_HD_INLINE T normalize(T x, T mean, T scale, T bias) {
    return (x - mean) * scale + bias;
}
/// batch_norm_backward_data: scale as above, mean_dy = sum(dy) / count,
/// slope = inverse_deviation * sum(dy * xhat) / count.
template <class T>
LOCKSTEP_HD_INLINE T normalize_backward(T x, T dy, T mean, T scale, T mean_dy, T slope) {
    return scale * (dy - mean_dy - (x - mean) * slope);
}

/// One step of the running mean or variance.
template <class T>
LOCKSTEP_HD_INLINE T update_running(T running, T value, double momentum) {
    return static_cast<T>((1 - momentum) * static_cast<double>(running) + momentum * static_cast<double>(value));
}

}  // namespace lockstep::element
