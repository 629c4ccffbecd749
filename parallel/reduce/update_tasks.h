// The update of a range by an optimizer, as tasks of a schedule.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/reduce/arena_partition.h"
#include "lockstep/parallel/schedule/emitter.h"

namespace lockstep {

/// Locations of the operands of an update, all on one device.
struct UpdateMemory {
    MemoryRef gradients, parameters;  ///< gradients and parameters of the range
    MemoryRef rows;                   ///< table of the arena's parameters
    std::map<std::string, MemoryRef, std::less<>> states;
};

/// Appends the update of `part` to the stream on which `device` commits.
void emit_update(Emitter& emitter, DeviceIndex device, const Optimizer& optimizer, const Bucket& part,
                 const UpdateMemory& memory);

}  // namespace lockstep
