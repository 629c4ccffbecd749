// Rows of an arena's parameters, in device memory.
#pragma once

#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

struct Rows {
    const char* first;
    std::size_t row_bytes;

    LOCKSTEP_HD_INLINE const ParameterRow& operator[](int parameter) const {
        return *reinterpret_cast<const ParameterRow*>(first + row_bytes * static_cast<std::size_t>(parameter));
    }
    /// The parameter of the range that contains element e of the arena; -1 for a gap. Kernels search once for the
    /// chunks of a thread: parameters are long, and begin at multiples of many chunks.
    LOCKSTEP_HD_INLINE int at(std::int64_t e, const ArenaRange& range) const {
        int low = range.first, high = range.last;  // the last one that begins at or before e
        while (low < high) {
            const int middle = low + static_cast<int>(static_cast<unsigned>(high - low) / 2);
            if ((*this)[middle].begin <= e)
                low = middle + 1;
            else
                high = middle;
        }
        return low > range.first && e < (*this)[low - 1].end ? low - 1 : -1;
    }
};

/// The chunks of a thread: the threads of a warp access adjacent chunks, and usually one parameter has all of them.
template <int width>
struct ThreadChunks {
    static constexpr int lanes = 32, count = 4;
    static constexpr int step = lanes * width;                ///< elements from a chunk to the next
    static constexpr int reach = (count - 1) * step + width;  ///< elements from the first chunk to the end of the last

    static std::int64_t threads(std::int64_t elements) { return ceil_div(elements, count * step) * lanes; }
    /// First element of a thread.
    LOCKSTEP_HD_INLINE static std::int64_t first(std::int64_t thread) {
        return (thread / lanes * lanes * count + thread % lanes) * width;
    }
};

}  // namespace lockstep::cuda
