// Report of a failure from a rank to its launcher.
#pragma once

#include <cstdint>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// The rank that caused a failure.
enum class FailureCause : std::uint8_t {
    this_rank,  ///< this rank
    other_rank  ///< another one, for which this rank has waited
};

/// Records for the launcher of this process that it has failed, so that "failed first" names the right rank in whatever
/// order they end. Writes time and cause to LOCKSTEP_FAILURE_FILE; only the first call has an effect. Process groups
/// call it when an operation fails and when an exception ends them. Programs call it when they report an error. A no-op
/// without lockstep-run or `launch`.
void report_failure(FailureCause cause = FailureCause::this_rank) noexcept;

}  // namespace lockstep
