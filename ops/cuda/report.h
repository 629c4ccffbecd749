// Reports of forward in the status word.
#pragma once

#include <cstdint>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// Writes the first report; called by one thread of a kernel.
LOCKSTEP_HD_INLINE void report(StatusWord* status, StatusCode code, int shard, const StepCounters* step,
                               std::int64_t row, std::int64_t value) {
    if (status == nullptr || status->code != 0) return;
    status->shard = shard;
    status->step = step != nullptr ? static_cast<std::int64_t>(step->step) : 0;
    status->row = row;
    status->value = value;
    status->code = static_cast<std::int32_t>(code);
}

}  // namespace lockstep::cuda
