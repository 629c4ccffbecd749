// Starts a program as the ranks of a job, one process per device, and stays with them until all have ended.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/parallel/comm/launch_options.h"
#include "lockstep/parallel/comm/note_failure.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep {

/// Runs `options.command`, or calls `options.function`, as `options.processes` ranks and returns when all have ended,
/// together with what they have started in their process groups. When one fails (an exit status other than 0, or a
/// signal) the others are ended; who ends with 0 while others run on is left alone.
///
/// Each rank learns who it is from RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR,
/// MASTER_PORT, TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS (`rank_info` reads them), has a random
/// LOCKSTEP_STORE_TOKEN with one node unless one is set, is told where to note its failure by LOCKSTEP_FAILURE_FILE (a
/// process group that an exception ends does), has OMP_NUM_THREADS set to its share of the cores unless it is set and
/// OMP_THREAD_LIMIT to at most that unless `bind_cores` is off, and on a machine without GPUs sees one CPU device, of
/// all its cores, unless LOCKSTEP_CPU_DEVICES or CUDA_VISIBLE_DEVICES is set. Standard input is empty. Standard output
/// is this process's unless it goes to a file or bears prefixes. A free port is bound, not listened on, by this process
/// until the attempt has ended, so that nobody else is given it: rank 0 listens on it with SO_REUSEADDR, as our store
/// and PyTorch's do.
///
/// Meanwhile this process's handlers of SIGCHLD and of `options.passed_signals` are replaced; a signal that is ignored
/// stays so. Only one launch at a time. The ranks die with the calling thread, however it ends, and with this process
/// what they have started, even where SIGKILL took it: a process of its own, a child of this one, watches over that.
/// What stays is who has left the process group of its rank (setsid, job control of a shell), and, should a SIGKILL
/// take that watcher as well, whatever the ranks themselves have started.
///
/// Throws InvalidArgument, before anything is started, for a program that cannot be executed and for options that
/// cannot be or contradict each other, and Error when the system refuses processes or files.
///
/// With `options.function` ranks are forks of this process, as fork() alone makes them, so that InvalidArgument is
/// thrown while devices are in use here: launch before models and tensors are made, or after they are gone. Where the
/// host has computed with several threads before, ranks do so with one. A rank ends when its function does, without
/// destructors of static objects. Its message, where it throws, is that of the failure.
LaunchResult launch(const LaunchOptions& options);

namespace detail {
/// Throws CommunicationError for a run that has failed.
void require_success(const LaunchResult& result);
}  // namespace detail

/// Calls `function(group, arguments...)` in so many processes of this machine, which have the group of all of them
/// (backend shm), or `function(rank, arguments...)` with a RankInfo where it takes none; returns when all have ended.
/// Throws as above, and CommunicationError that names the rank that failed first and says its message.
/// torch.multiprocessing.spawn.
template <class Function, class... Arguments>
void launch(int processes, const Function& function, const Arguments&... arguments) {
    LaunchOptions options;
    options.processes = processes;
    options.function = [&](const RankInfo& rank) {
        if constexpr (std::is_invocable_v<const Function&, ProcessGroup&, const Arguments&...>) {
            ProcessGroup group;
            function(group, arguments...);
        } else {
            function(rank, arguments...);
        }
    };
    detail::require_success(launch(options));
}

/// The ranks of a machine: a number, "gpu" (one per GPU), "cpu" (one per core), or "auto": one per GPU, or per virtual
/// CPU device where there are none. Throws InvalidArgument for anything else, and for "gpu" without GPUs.
int processes_per_node(std::string_view text);

/// This program with the arguments of its `main`, for `LaunchOptions::command`.
std::vector<std::string> own_command(int argc, const char* const* argv);

}  // namespace lockstep
