// Operations that order elements, in addition to ArgSort.
#pragma once

#include <cstdint>

namespace lockstep {

/// ArgSort of which only the first `count` positions of each line are needed: the others are not specified.
struct ArgTop {
    static constexpr const char* name = "argtop";
    int dim;
    bool descending;
    std::int64_t count;
};

}  // namespace lockstep
