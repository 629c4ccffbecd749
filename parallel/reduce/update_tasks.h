// The update of a range by an optimizer, as tasks of a schedule.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/reduce/arena_partition.h"
#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/schedule/emitter.h"

namespace lockstep {

/// Locations of the operands of an update, all on one device.
struct UpdateMemory {
    MemoryRef gradients, parameters;  ///< gradients and parameters of the range
    MemoryRef rows;                   ///< table of the arena's parameters
    std::map<std::string, MemoryRef, std::less<>> states;
    MemoryRef norms = {};  ///< norms of the arena's parameters, if the optimizer needs them
};

/// Locations for `part` on `device`.
UpdateMemory update_memory(const ReductionMemory& reduction, Optimizer& optimizer, DeviceIndex device,
                           const Bucket& part);

/// Appends the measurement of `part` for norms of parameters to the stream on which `device` commits. `measures`:
/// result of MeasureUpdate.
void emit_measurement(Emitter& emitter, DeviceIndex device, const Optimizer& optimizer, const Bucket& part,
                      const UpdateMemory& memory, const MemoryRef& measures);

/// Appends the update of `part` to the stream on which `device` commits.
void emit_update(Emitter& emitter, DeviceIndex device, const Optimizer& optimizer, const Bucket& part,
                 const UpdateMemory& memory);

}  // namespace lockstep
