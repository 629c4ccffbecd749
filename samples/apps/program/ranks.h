// How a program becomes one of several ranks: by flags, or by starting itself once per rank if no launcher did.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace CLI {
class App;
}  // namespace CLI

namespace program {

struct RankFlags {
    std::string backend, init_method = "env://";
    std::string launcher;  ///< "none", "pytorch", "mpi" or "slurm"; empty: not given
    std::optional<int> rank, world_size;
    std::optional<std::int64_t> timeout_seconds;  ///< 300 unless given
};

/// --backend and --timeout, in the group `group` of --help: enough for a program that always starts its ranks itself.
void add_flags_of_backend(CLI::App& app, RankFlags& flags, const std::string& group = "Processes");
/// These, and --launcher, --init-method, --rank and --world-size.
void add_flags_of_ranks(CLI::App& app, RankFlags& flags, const std::string& group = "Processes");

/// Throws UsageError if --launcher names another launcher than the one that started this process.
void require_launcher(const RankFlags& flags);

/// Whether neither a launcher nor flags made this process a rank.
bool has_no_launcher(const RankFlags& flags);

/// Starts this program as `processes` ranks and waits. A line that several ranks print on standard error is printed
/// once. Throws RanksFailed if they have printed their errors, otherwise CommunicationError.
void launch_ranks(const RankFlags& flags, int processes, std::vector<std::string> command);
/// As above with ranks that call `function` instead of starting the program again. This process must not have used
/// devices yet.
void launch_ranks(const RankFlags& flags, int processes, const std::function<void()>& function);

/// `devices`: the devices for the ranks of this host, as in --devices.
std::shared_ptr<lockstep::ProcessGroup> join_ranks(const RankFlags& flags, const std::string& devices = "all");

}  // namespace program
