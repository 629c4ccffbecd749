// Reports of forward in the status word.
#pragma once

#include <cstdint>

#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// Only the first report is kept.
inline void report(const KernelArgs& call, StatusCode code, std::int64_t row, std::int64_t value) {
    StatusWord& status = *call.status;
    if (status.code != 0) return;
    status = {static_cast<std::int32_t>(code), call.shard, static_cast<std::int64_t>(call.step->step), row, value};
}

}  // namespace lockstep::cpu
