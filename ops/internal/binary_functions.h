// Functions of two numbers: operations on the elements of two tensors, of which every backend makes kernels. To add
// one: a struct and its name in the list, its function in functional.h with its gradient in elementwise.cpp, and a line
// in tests/ops/op_table_elementwise.cpp.
#pragma once

#include <tuple>
#include <type_traits>

#include "lockstep/runtime/element.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// What numbers of type T are added and multiplied as: integers wrap around, which signed ones may not do.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

namespace functor {

struct Add {
    static constexpr const char* name = "add";
    template <class T>
    LOCKSTEP_ELEMENT T value(T a, T b) const {
        return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    }
};

struct Sub {
    static constexpr const char* name = "sub";
    template <class T>
    LOCKSTEP_ELEMENT T value(T a, T b) const {
        return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
    }
};

struct Mul {
    static constexpr const char* name = "mul";
    template <class T>
    LOCKSTEP_ELEMENT T value(T a, T b) const {
        return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
};

/// Not of integers: functions make floats of them first.
struct Div {
    static constexpr const char* name = "div";
    template <class T>
    LOCKSTEP_ELEMENT T value(T a, T b) const {
        return static_cast<T>(a / b);
    }
};

}  // namespace functor

using BinaryFunctions = std::tuple<functor::Add, functor::Sub, functor::Mul, functor::Div>;

/// in: a, b (broadcast together, any strides; all dtypes but bool); out: y. A product of an opaque 4-D `a` and a `b` of
/// shape (N, C, 1, 1) keeps the layout of `a`; equal opaque layouts are kept as well.
template <class F>
struct Binary {
    static constexpr const char* name = F::name;
    static constexpr bool is_elementwise = true;
};

}  // namespace lockstep
