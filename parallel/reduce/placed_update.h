// The update of a range by an optimizer, as tasks of a schedule.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/schedule/engine_context.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep {

/// Where the operands of an update lie, all on one device.
struct UpdateMemory {
    PlaceRef gradients, parameters;  ///< of the range
    PlaceRef rows;                   ///< of the arena's parameters
    std::map<std::string, PlaceRef, std::less<>> states;
};

/// Appends the update of `part` to the stream on which `device` commits.
void place_update(EngineContext& context, Schedule& schedule, int device, const Optimizer& optimizer,
                  const Bucket& part, const UpdateMemory& memory);

}  // namespace lockstep
