// Copies between strided tensors, with conversion of the element type.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/cpu/strided.h"
#include "lockstep/ops/cpu/transposed_copy.h"

namespace lockstep::cpu {

/// A copy for one shape. Floats are truncated to integers and clamped to the integer's range (NaN: 0); bool is "not
/// zero". Immutable.
class StridedCopy {
public:
    /// Both have shape `shape`; strides in elements.
    StridedCopy(DType from_dtype, const Shape& from_strides, DType to_dtype, const Shape& to_strides,
                const Shape& shape);
    void run(const void* from, void* to, int threads) const;

private:
    using Row = void (*)(const void* from, std::int64_t from_step, void* to, std::int64_t to_step, std::int64_t count);

    StridedWalk<2> walk_;
    std::int64_t from_size_, to_size_;
    Row row_;
    std::optional<TransposedCopy> transposed_;
};

}  // namespace lockstep::cpu
