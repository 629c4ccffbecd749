// Operations on every element that are no mere functions of a number (unary_functions.h) or two (binary_functions.h).
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// x + no_shift is x for every x; + 0 would make 0 of -0.
constexpr double no_shift = -0.0;
/// in: x (any layout; opaque is kept); out: scale * x + shift
struct Affine {
    static constexpr const char* name = "affine";
    static constexpr bool is_elementwise = true;
    double scale, shift;
};

}  // namespace lockstep
