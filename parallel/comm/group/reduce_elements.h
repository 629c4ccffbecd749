// The arithmetic of reductions between ranks: one loop for every element type and operation.
#pragma once

#include <cstddef>

#include "lockstep/parallel/comm/reduce_op.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// out[i] = a[i] op b[i]; `out` may be `a` or `b`. f16 and bf16 are computed in f32 and rounded. boolean: sum and max
/// are "or", product and min are "and". Integers wrap. NaN in either makes min and max NaN. `op` is not mean.
void reduce_elements(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::size_t count);

/// data[i] /= divisor; integers are truncated towards zero. Not for boolean.
void divide_elements(DType dtype, void* data, std::size_t count, int divisor);

}  // namespace lockstep
