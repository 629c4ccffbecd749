#include "lockstep/parallel/comm/launch_options.h"

#include <fmt/format.h>

#include "lockstep/parallel/comm/launch/signal_watch.h"

namespace lockstep {

std::string RankFailure::str() const {
    if (silent)
        return fmt::format("rank {} failed first: {}, and others timed out waiting for it", rank,
                           stopped_by != 0 ? "stopped by " + name_of_signal(stopped_by) : "it made no progress");
    if (!message.empty()) return fmt::format("rank {} failed first: {}", rank, message);
    return fmt::format(
        "rank {} failed first: {}", rank,
        signal != 0 ? "killed by " + name_of_signal(signal) : fmt::format("exit status {}", exit_status));
}

std::string LaunchResult::str() const {
    if (signal != 0) return fmt::format("ended by {} from outside", name_of_signal(signal));
    if (!failure) return "all ranks succeeded";
    if (restarts == 0) return failure->str();
    return fmt::format("{}; the limit of {} {} is reached", failure->str(), restarts,
                       restarts == 1 ? "restart" : "restarts");
}

}  // namespace lockstep
