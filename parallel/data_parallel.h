// DataParallel: one model on all devices of a machine, driven by one host thread.
#pragma once

#include <utility>

#include "lockstep/parallel/sharded_model.h"

namespace lockstep {

using DataParallelOptions = EngineOptions;

/// Trains `Net` (a struct with LOCKSTEP_MEMBERS and `forward`) on several devices. `forward` describes what one shard
/// does: it is called once for each distinct shard shape and mode, not once per device or step. Replica 0 is the truth:
/// members reached through the wrapper are its own, writing them makes the others stale until the next call.
template <class Net>
class DataParallel : public ShardedModel<Net> {
public:
    /// Moves the model's tensors into arenas on every device. Throws InvalidArgument for bad device lists and options,
    /// for parameters spread over several devices, and for models that are wrapped already.
    explicit DataParallel(Net model, Devices devices = Devices::visible(), const DataParallelOptions& options = {})
        : ShardedModel<Net>("DataParallel", std::move(model), devices, options, nullptr) {}
};

}  // namespace lockstep
