// SIGINT and SIGTERM as wishes: a program that trains ends at a step and saves, instead of on the spot.
//
//     ls::StopSignals stop;
//     for (auto& [images, labels] : batches) {
//         if (model.stops(stop)) break;      // on all ranks before the same step
//         model.step(sgd, images, labels, ls::nll_loss);
//     }
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep {

/// SIGUSR1, SIGUSR2 and SIGXCPU: a scheduler (sbatch --signal) or a limit of CPU time (ulimit -t) sends them some time
/// before it ends a process, and repeats them.
constexpr bool is_advance_warning(int signal) { return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGXCPU; }

/// While it lives, the first of its signals is recorded and otherwise ignored; the next one that comes at least
/// `one_wish` later ends the process as if this were not here. Advance warnings do not count as a first or a next one:
/// they are recorded, and the SIGTERM that follows one does not end the process yet. Signals that are ignored stay so
/// (nohup). One at a time in a process; what the signals did before is restored at the end.
class StopSignals {
public:
    /// Terminals, launchers and `timeout` send one wish several times, to a process and to its group.
    static constexpr std::chrono::milliseconds one_wish{300};

    /// Throws InvalidArgument when there is one already, or for signals that cannot be caught.
    explicit StopSignals(const std::vector<int>& numbers = {SIGINT, SIGTERM});
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    /// The first one that has come.
    std::optional<int> signal() const noexcept;

private:
    struct Before;
    void restore() noexcept;
    std::vector<Before> before_;
};

}  // namespace lockstep
