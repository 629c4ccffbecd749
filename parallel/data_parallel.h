// DataParallel: one model on all devices of a machine, driven by one host thread.
#pragma once

#include <utility>

#include "lockstep/parallel/sharded_model.h"

namespace lockstep {

/// Options of a DataParallel.
using DataParallelOptions = EngineOptions;

/// Trains `Net` (a struct with LOCKSTEP_MEMBERS and `forward`) on several devices. `forward` describes the computation
/// of one shard: it is called once for each distinct shard shape and mode, not once per device or step. Replica 0 is
/// authoritative: the wrapper gives access to its members, and writing them makes the other replicas stale until the
/// next call.
template <class Net>
class DataParallel : public ShardedModel<Net> {
public:
    /// Moves the model's tensors into arenas on every device. Throws InvalidArgument for invalid device lists and
    /// options, for parameters on more than one device, and for models that are already wrapped.
    explicit DataParallel(Net model, Devices devices = Devices::visible(), const DataParallelOptions& options = {})
        : ShardedModel<Net>("DataParallel", std::move(model), devices, options, nullptr) {}
};

}  // namespace lockstep
