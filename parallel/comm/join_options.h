// Uneven inputs (torch.distributed.algorithms.Join).
#pragma once

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Options for ranks that run out of batches at different times (DistributedDataParallel::join).
struct JoinOptions {
    /// If true, gradients are averaged over all ranks, and ranks without batches count as zeros. If false, the mean is
    /// over the ranks that still have batches, so that late batches have more weight.
    bool divide_by_initial_world_size = true;
    /// All ranks throw StepError as soon as one of them has no batch left.
    bool throw_on_early_termination = false;
};

}  // namespace lockstep
