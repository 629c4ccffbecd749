// Functions of every element with several formulas.
#pragma once

#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A Piecewise function with its attributes. Throws InvalidArgument, with the caller's `name`, unless x is of floats.
Tensor piecewise(const char* name, const Tensor& x, functor::Piecewise function, double a = 0, double b = 0,
                 double c = 0);

}  // namespace lockstep
