// LOCKSTEP_CPU_SERIAL=1: CPU devices run every piece of work at once, on the enqueuing thread, and under
// AddressSanitizer all device memory that the work did not declare is poisoned while it runs.
#pragma once

#include <span>

#include "lockstep/runtime/stream.h"

namespace lockstep::serial_mode {

bool enabled();
Work guard(Work work, std::span<const Access> accesses);

}  // namespace lockstep::serial_mode
