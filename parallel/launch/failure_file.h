// Where a rank writes when something first went wrong in it.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/sockets.h"

namespace lockstep {

/// In memory, with a name that lasts as long as this process has it open: however the run ends, nothing is left behind.
class FailureFile {
public:
    FailureFile();
    /// For LOCKSTEP_FAILURE_FILE; empty where the system has no such files.
    std::string path() const;
    /// What `note_failure` wrote.
    std::optional<std::chrono::steady_clock::time_point> mark() const;

private:
    Descriptor file_;
};

}  // namespace lockstep
