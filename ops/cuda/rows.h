// Rows of an arena's parameters, in device memory.
#pragma once

#include "lockstep/ops/update_rule.h"

namespace lockstep::cuda {

struct Rows {
    const char* first;
    std::size_t row_bytes;

    LOCKSTEP_ELEMENT const ParameterRow& operator[](int parameter) const {
        return *reinterpret_cast<const ParameterRow*>(first + row_bytes * static_cast<std::size_t>(parameter));
    }
    /// The parameter of the range in which element e of the arena lies; -1 for a gap.
    LOCKSTEP_ELEMENT int at(std::int64_t e, const ArenaRange& range) const {
        int low = range.first, high = range.last;  // the last one that begins at or before e
        while (low < high) {
            const int middle = (low + high) / 2;
            if ((*this)[middle].begin <= e)
                low = middle + 1;
            else
                high = middle;
        }
        return low > range.first && e < (*this)[low - 1].end ? low - 1 : -1;
    }
};

}  // namespace lockstep::cuda
