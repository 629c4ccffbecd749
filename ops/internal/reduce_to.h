// The gradient of broadcasting.
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// `x` summed down to `shape`, which broadcasts to that of `x`.
Tensor reduce_to(const Tensor& x, const Shape& shape);

}  // namespace lockstep
