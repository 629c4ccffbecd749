// Operations that find or place elements. Sums: runtime/internal/core_operations.h.
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// in: x; out: i64, index of the first largest element of dimension `dim`, kept with size 1
struct ArgMax {
    static constexpr const char* name = "argmax";
    int dim;
};

/// in: n tensors alike but for `dim`; out: them one after another along `dim`
struct Cat {
    static constexpr const char* name = "cat";
    int dim;
};

}  // namespace lockstep
