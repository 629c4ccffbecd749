// Copies of persistent state to the host in the order of the steps, while later steps are enqueued.
#pragma once

#include "lockstep/parallel/engine/engine_parts.h"
#include "lockstep/runtime/state_copies.h"

namespace lockstep {

/// Implements Engine::copy_out.
void copy_out(EngineParts& parts, StateCopies& copies);

}  // namespace lockstep
