// What a training loop tells of a step.
#pragma once

#include <cstdint>

namespace lockstep {

/// A step that is done.
struct StepReport {
    std::uint64_t epoch = 0;
    std::int64_t step = 0;  ///< counted from 0 over the whole run
    std::int64_t rows = 0;
    double loss = 0;
};

}  // namespace lockstep
