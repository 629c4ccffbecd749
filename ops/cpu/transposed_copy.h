// Copies between tensors whose innermost dimensions differ, in tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/ops/cpu/strided.h"

namespace lockstep::cpu {

/// A copy in which adjacent elements of the source are far apart in the target, and conversely. Immutable.
class TransposedCopy {
public:
    /// Strides in elements, as in StridedCopy. Absent if the innermost dimensions are the same, or too small to gain
    /// from tiles.
    static std::optional<TransposedCopy> of(std::size_t element_bytes, const Shape& from_strides,
                                            const Shape& to_strides, const Shape& shape);
    void run(const void* from, void* to, int threads) const;

private:
    template <class Bits>
    void run_as(const Bits* from, Bits* to, int threads) const;

    StridedWalk<2> outer_{Shape{}, {Shape{}, Shape{}}};  ///< over the matrices
    std::size_t bytes_ = 0;
    // A matrix: its columns are adjacent in the source, its rows in the target.
    std::int64_t rows_ = 0, columns_ = 0, from_step_ = 0, to_step_ = 0;
};

}  // namespace lockstep::cpu
