// Operations that find or place elements. Sums: runtime/internal/core_operations.h.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/runtime/operation.h"
#include "lockstep/runtime/shape.h"

namespace lockstep {

/// in: x; out: i64, index of the first largest element of dimension `dim`, kept with size 1
struct ArgMax {
    static constexpr const char* name = "argmax";
    int dim;
};

/// in: n tensors alike but for `dim`; out: them one after another along `dim`; in a layout of the backend's where they
/// lie in it and their sizes allow
struct Cat {
    static constexpr const char* name = "cat";
    int dim;
};
/// in: x; out: n tensors of `sizes` along `dim`, that x is made of one after another, in its layout as Cat has it;
/// those that are not wanted may be missing
struct Split {
    static constexpr const char* name = "split";
    int dim;
    std::vector<std::int64_t> sizes;
};

/// in: x i64; out: i64, f32 or f64, of the shape of x with another dimension before `dim`: 1 at the element's number
/// along that, 0 elsewhere. A number that does not lie in it is reported in the status word
/// (StatusCode::target_out_of_range, with row and value).
struct OneHot {
    static constexpr const char* name = "one_hot";
    static constexpr bool reports_status = true;
    int dim;
};

/// in: x; out: y with y[i] = x[i - before] where that lies in x, and `value` elsewhere; `before` may be negative
struct Pad {
    static constexpr const char* name = "pad";
    Shape before;
    double value;
};

}  // namespace lockstep
