// How a program becomes one of several: flags that say who it is, and starting itself as all of them when nobody did.
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
    std::string launcher;  ///< where it was given: "none", "pytorch", "mpi" or "slurm"
    std::optional<int> rank, world_size;
    std::optional<std::int64_t> timeout_seconds;  ///< where it was given; else 300
};

/// --launcher, --backend, --init-method, --rank, --world-size and --timeout, in the group `group` of --help.
void add_flags_of_ranks(CLI::App& app, RankFlags& flags, const std::string& group = "Processes");

/// Throws UsageError when --launcher names another launcher than the one that has started this process.
void require_launcher(const RankFlags& flags);

/// Nobody has made this process one of several.
bool nobody_launched(const RankFlags& flags);

/// Starts this program as so many ranks and waits. What several say on standard error alike is printed once. Throws
/// RanksFailed when they have said what was wrong, else CommunicationError.
void launch_ranks(const RankFlags& flags, int processes, std::vector<std::string> command);
/// The same with ranks that call `function` of this program, which has used no devices yet, instead of beginning it
/// anew.
void launch_ranks(const RankFlags& flags, int processes, const std::function<void()>& function);

/// `devices`: of the ranks of this host, as --devices names them.
std::shared_ptr<lockstep::ProcessGroup> join_ranks(const RankFlags& flags, const std::string& devices = "all");

}  // namespace program
