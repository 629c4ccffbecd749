// Functions of integer tensors whose results are integers. Floats have kernels for the same functions.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/internal/bivariate.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::integers {

/// Whether x is defined and has an integer dtype other than bool.
bool is_one(const Tensor& x);

// The function of that name (elementwise.h) of x, of integers.
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor relu(const Tensor& x);
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max);
/// Throws InvalidArgument for a negative exponent.
Tensor pow(const Tensor& x, std::int64_t exponent);

/// x, also of floats or bool, with its elements in the opposite order. That of integers is -1 - x, which does not
/// overflow; bool becomes i64.
Tensor reversed(const Tensor& x);
/// Whether both are defined and of integers or bool.
bool are_both(const Tensor& a, const Tensor& b);
/// A function of two tensors of integers or bool, in their common dtype, which must not be bool; they are broadcast.
Tensor bivariate(const char* name, const Tensor& a, const Tensor& b, IntegerBivariate::Function function);
/// A number as a tensor for such a function of x.
Tensor number(const char* name, Scalar value, const Tensor& x);

}  // namespace lockstep::integers
