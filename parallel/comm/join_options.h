// Uneven inputs (torch.distributed.algorithms.Join).
#pragma once

namespace lockstep {

/// What happens when ranks run out of batches one after the other (DistributedDataParallel::join).
struct JoinOptions {
    /// The mean of gradients is over all ranks, those without batches count as zeros. Otherwise it is over the ranks
    /// that still have some: late batches count for more.
    bool divide_by_initial_world_size = true;
    /// All ranks throw StepError as soon as one has none left.
    bool throw_on_early_termination = false;
};

}  // namespace lockstep
