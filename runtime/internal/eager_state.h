// Step state of eager work, one per device.
#pragma once

#include <cstdint>

#include "lockstep/runtime/random.h"
#include "lockstep/runtime/status.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::eager_state {

struct State {
    const StepState* step;  ///< seeded as `manual_seed` said last
    StatusWord* good;       ///< a status word that nobody writes
};
/// In device memory of `device`.
State of(Device device);
/// Ordinal for the next random operation since `manual_seed`.
std::uint32_t next_ordinal();
void reseed(std::uint64_t seed);

}  // namespace lockstep::eager_state
