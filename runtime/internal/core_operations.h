// Operations that tensors themselves need. Their kernels are in ops/cpu and ops/cuda, like all others.
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// out = in, converted between dtypes and between layouts (strided with any strides, 0 included, and opaque).
struct Reorder {
    static constexpr const char* name = "reorder";
    static constexpr bool is_elementwise = true;
};

/// in: n tensors; out: n tensors, out[i] = in[i], converted between dtypes and strided layouts. Parameters are
/// converted by it once per step.
struct CastParameters {
    static constexpr const char* name = "cast_parameters";
};

/// Overwrites lasting state with new values that were prepared separately. Runs if the step is good.
/// in: contiguous values; out: as many bytes, in place
struct CommitIfOk {
    static constexpr const char* name = "commit_if_ok";
    bool commits() const { return true; }
};

/// out = value, in any strided layout.
struct Fill {
    static constexpr const char* name = "fill";
    static constexpr bool is_elementwise = true;
    double value;
};

/// out = a + b, same shape and dtype; autograd adds gradients with it. Takes a strided or an opaque layout that both
/// share without conversion.
struct Accumulate {
    static constexpr const char* name = "accumulate";
    static constexpr bool is_elementwise = true;
};

/// in: x; out: y, summed over the dims whose bit is set in `dims`, which are kept with size 1. Summation order depends
/// on the shape only.
struct Sum {
    static constexpr const char* name = "sum";
    std::uint32_t dims;
};

}  // namespace lockstep
