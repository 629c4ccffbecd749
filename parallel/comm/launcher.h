// Starts a program as the ranks of a job, one process per device, and supervises them until all have ended.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/parallel/comm/launch_options.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/comm/report_failure.h"

namespace lockstep {

/// Runs `options.command`, or calls `options.function`, as `options.processes` ranks. Returns when all ranks have
/// ended, with everything that they have started in their process groups. If one fails (an exit status other than 0, or
/// a signal), the others are ended. A rank that exits with status 0 does not affect the others.
///
/// Environment of the ranks:
/// - RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT: see `rank_info`.
/// - TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS: number of the attempt, and `options.max_restarts`.
/// - LOCKSTEP_STORE_TOKEN: a random token if all ranks are on this host, unless already set.
/// - LOCKSTEP_FAILURE_FILE: the file in which a rank records its failure, for example by a process group's exception.
/// - OMP_NUM_THREADS: the rank's share of the cores, unless already set.
/// - OMP_THREAD_LIMIT: at most this share, unless `bind_cores` is off.
/// - LOCKSTEP_CPU_DEVICES: 1 on a host without GPUs, unless it or CUDA_VISIBLE_DEVICES is set.
///
/// Closed standard streams of this process are opened on /dev/null.
///
/// Standard input is empty. Standard output is inherited unless it is redirected to a file or prefixed. A free port is
/// bound by this process, without listening, until the attempt has ended, so that the system assigns it to no other
/// process. Rank 0 listens on it with SO_REUSEADDR, as the stores of Lockstep and PyTorch do.
///
/// During the call this process's handlers of SIGCHLD and of `options.forwarded_signals` are replaced; ignored signals
/// remain ignored. Only one launch may run at a time. The ranks die with the calling thread, however it ends. Processes
/// that they have started die with this process, even if it is killed by SIGKILL: a watcher process ensures that.
/// Processes that have left the process group of their rank (setsid, job control of a shell) survive. If the watcher is
/// also killed by SIGKILL, those that the ranks have started survive as well.
///
/// Throws InvalidArgument, before anything is started, for a program that cannot be executed and for invalid or
/// contradictory options. Throws Error if the system cannot create processes or files.
///
/// With `options.function` ranks are created by fork() without exec. InvalidArgument is thrown while devices are in use
/// in this process: launch before models and tensors are created, or after they are destroyed. If the host has already
/// computed with several threads, ranks compute with one. A rank ends when its function returns, without
/// running destructors of static objects. The message of an exception that it throws becomes the message of the
/// failure.
LaunchResult launch(const LaunchOptions& options);

namespace detail {
/// Throws CommunicationError for a run that has failed.
void require_success(const LaunchResult& result);
}  // namespace detail

/// Calls `function(group, arguments...)` in `processes` processes of this host, with a group of all of them (backend
/// shm). A function that does not accept a group is called as `function(rank, arguments...)`, with a RankInfo. Returns
/// when all have ended. Throws as above, and CommunicationError with the first rank that failed and its message.
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

/// Opens closed standard streams on /dev/null. Call it first in a program that may be started without them, for example
/// by a daemon: otherwise the next files that the program opens get their descriptors, and the text that it prints.
/// `launch`, process groups, checkpoints and logs call it.
void open_standard_streams() noexcept;

/// Number of ranks for a host: from a number, "gpu" (one per GPU), "cpu" (one per core), or "auto". "auto" is one per
/// GPU, or one per virtual CPU device on a host without GPUs. Throws InvalidArgument for other text, and for "gpu"
/// without GPUs.
int processes_per_node(std::string_view text);

/// This program with the arguments of its `main`, for `LaunchOptions::command`.
std::vector<std::string> own_command(int argc, const char* const* argv);

}  // namespace lockstep
