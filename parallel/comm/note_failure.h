// A rank tells its launcher that something has gone wrong.
#pragma once

#include <cstdint>

namespace lockstep {

/// Where it went wrong.
enum class FailureCause : std::uint8_t {
    here,   ///< in this rank
    others  ///< in another one: this rank has waited for it in vain
};

/// Tells the launcher of this process that something has just gone wrong, so that "failed first" names the right rank,
/// whichever ends first: writes time and cause to LOCKSTEP_FAILURE_FILE. The first call counts. Process groups call it
/// when an operation fails and when an exception ends them; a program calls it where it reports an error. Nothing
/// without a launcher of ours.
void note_failure(FailureCause cause = FailureCause::here) noexcept;

}  // namespace lockstep
