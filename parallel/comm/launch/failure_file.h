// The file in which a rank records its first failure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/note_failure.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// Content written by `note_failure`.
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
    /// The message of the exception that ended a rank's function: written by the rank, which inherits this file.
    void write_message(const std::string& text) const noexcept;
    std::string message() const;

private:
    Descriptor file_;
};

}  // namespace lockstep
