// Turning opaque storage into strided storage.
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Brings the storage of `tensor` into row-major order if a backend keeps it in a layout of its own. All aliases see
/// it; values, version and tape stay.
void make_strided(const Tensor& tensor);

}  // namespace lockstep
