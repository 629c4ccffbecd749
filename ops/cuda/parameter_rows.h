// Rows of an arena's parameters, in device memory.
#pragma once

#include "lockstep/ops/update_rule.h"

namespace lockstep::cuda {

struct Rows {
    const char* first;
    std::size_t row_bytes;

    LOCKSTEP_HD_INLINE const ParameterRow& operator[](int parameter) const {
        return *reinterpret_cast<const ParameterRow*>(first + row_bytes * static_cast<std::size_t>(parameter));
    }
    /// The parameter of the range that contains element e of the arena; -1 for a gap. Kernels search once per chunk of
    /// elements: parameters are long, and begin at multiples of many chunks.
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

}  // namespace lockstep::cuda
