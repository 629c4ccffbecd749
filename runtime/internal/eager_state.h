// Step state and status word of eager work, one per device.
#pragma once

#include <cstdint>

#include "lockstep/runtime/random.h"
#include "lockstep/runtime/status.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::eager_state {

/// Device memory of `device`, seeded as `manual_seed` said last.
const StepState* step(Device device);
StatusWord* status(Device device);
/// Ordinal for the next random operation since `manual_seed`.
std::uint32_t next_ordinal();
void reseed(std::uint64_t seed);
/// Reads the status word of `device`, after `stream` has been synchronised; when it reports something, resets it and
/// throws InvalidArgument.
void check(Stream& stream);

}  // namespace lockstep::eager_state
