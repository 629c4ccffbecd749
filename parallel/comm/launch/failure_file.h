// Where a rank writes when something first went wrong in it.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/note_failure.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// What `note_failure` wrote.
struct FailureMark {
    std::chrono::steady_clock::time_point time;
    FailureCause cause = FailureCause::here;
};

/// In memory, with a name that lasts as long as this process has it open: however the run ends, nothing is left behind.
class FailureFile {
public:
    FailureFile();
    /// For LOCKSTEP_FAILURE_FILE; empty where the system has no such files.
    std::string path() const;
    /// Nothing while the rank has noted no failure.
    std::optional<FailureMark> mark() const;
    /// What ended a function that a rank was to call: written by the rank, which has this file from its parent.
    void write_message(const std::string& text) const noexcept;
    std::string message() const;

private:
    Descriptor file_;
};

}  // namespace lockstep
