// SIGINT and SIGTERM as requests: a training program stops after a step and saves, instead of terminating at once.
//
//     ls::StopSignals stop;
//     for (auto& [images, labels] : batches) {
//         if (model.should_stop(stop)) break;      // on all ranks before the same step
//         model.step(sgd, images, labels, ls::nll_loss);
//     }
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Reason for a stop that a thread has requested with a std::stop_source. Other reasons are numbers of signals, and 0.
inline constexpr int stopped_by_token = -1;

/// SIGUSR1, SIGUSR2 and SIGXCPU: a scheduler (sbatch --signal) or a CPU time limit (ulimit -t) sends them, repeatedly,
/// some time before it kills a process.
constexpr bool is_advance_warning(int signal) { return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGXCPU; }

/// While it lives, the first of its signals is recorded and otherwise ignored. A second signal, at least
/// `coalesce_window` later, gets the action that it had before. Advance warnings count as neither: they are recorded,
/// and the SIGTERM after one does not terminate the process yet. Ignored signals stay ignored (nohup). One instance at
/// a time per process; the destructor restores the previous actions.
class StopSignals {
public:
    /// Terminals, launchers and `timeout` send one request several times, to a process and to its group.
    static constexpr std::chrono::milliseconds coalesce_window{300};

    /// Throws InvalidArgument if an instance already exists, or for signals that cannot be caught.
    explicit StopSignals(const std::vector<int>& numbers = {SIGINT, SIGTERM});
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    /// The first signal received.
    std::optional<int> signal() const noexcept;

private:
    struct Before;
    void restore() noexcept;
    std::vector<Before> before_;
};

}  // namespace lockstep
