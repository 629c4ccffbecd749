#include "lockstep/parallel/checkpoint/snapshot.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

void require_own(const Engine& engine, const Optimizer& optimizer, const char* function) {
    if (optimizer.store() != engine.store())
        throw InvalidArgument(
            fmt::format("{}: the optimizer belongs to another model; expected this model's optimizer", function));
}

Snapshot::Snapshot(const char* function, Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
                   const RunState& run, HostMemory& memory)
    : run_(run), algorithms_(engine.algorithms()), copies_(engine.devices()[0]) {
    engine.store()->require_members(function);
    require_own(engine, optimizer, function);
    require_sensible(run);
    memory.rewind();
    weights_ = HostWeights(tensors, *engine.store(), memory, copies_.members);
    optimizer_ = HostOptimizerState(engine, optimizer, memory, copies_.others);
    engine.copy_out(copies_);
}

bool Snapshot::wait() {
    copies_.done.synchronize();
    if (!copies_.good()) return false;
    optimizer_.arrived();
    return true;
}

}  // namespace lockstep::internal
