// Report of a training loop about one step.
#pragma once

#include <cstdint>

namespace lockstep {

/// A completed step.
struct StepReport {
    std::uint64_t epoch = 0;
    std::int64_t step = 0;  ///< counted from 0 over the whole run
    std::int64_t rows = 0;
    double loss = 0;
    // The following settings are those of this step; optimizer and adaptive rates may already have those of a later
    // step.
    double lr = 0;        ///< learning rate of the optimizer's first group
    double momentum = 0;  ///< momentum of that group; 0 for an optimizer without this setting
    double gain = 1;      ///< AdaptiveRates::gain
};

}  // namespace lockstep
