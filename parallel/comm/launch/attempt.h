// One attempt of all ranks of this machine: started, watched, ended.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/parallel/comm/launch/signal_watch.h"
#include "lockstep/parallel/comm/launch_options.h"

namespace lockstep {

struct AttemptEnd {
    std::optional<RankFailure> failure;
    int signal = 0;  ///< external signal that ended it
    bool killed = false;
    bool lost_output = false;
};

/// Returns when all ranks have ended. `number` counts from 0; `signals` watches SIGCHLD and the signals of the options.
AttemptEnd run_attempt(const LaunchOptions& options, const std::filesystem::path& program, int number,
                       SignalWatch& signals);

}  // namespace lockstep
