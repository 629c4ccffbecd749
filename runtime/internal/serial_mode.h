// LOCKSTEP_CPU_SERIAL=1: CPU devices run every piece of work at once, on the enqueuing thread, and under
// AddressSanitizer all device memory that the work did not declare is poisoned while it runs.
#pragma once

#include <optional>
#include <span>

#include "lockstep/runtime/internal/poison.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::serial_mode {

bool enabled();

/// Around a call that enqueues work on a CPU device: the work runs within that call. Does nothing for other devices,
/// the host's streams among them (other threads may use those meanwhile), and when the mode is off.
class Guard {
public:
    Guard(Device device, std::span<const Access> accesses);

private:
    std::optional<poison::Scope> scope_;
};

}  // namespace lockstep::serial_mode
