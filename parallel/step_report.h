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
    // The settings of this step; those of the optimizer and of adaptive rates are already those of a later one.
    double lr = 0;        ///< of the optimizer's first group
    double momentum = 0;  ///< likewise; 0 for an optimizer without that setting
    double gain = 1;      ///< AdaptiveRates::gain
};

}  // namespace lockstep
