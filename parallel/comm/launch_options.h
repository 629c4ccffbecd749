// Options and results of a launcher.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/rank_info.h"

namespace lockstep {

/// Output streams of a process, numbered as in torchrun.
enum class Streams : std::uint8_t { none = 0, out = 1, err = 2, both = 3 };

/// The rank that failed first in an attempt; failures of other ranks that resulted from it are not reported. Ranks that
/// use process groups record the time of their failure, and whether they had only waited for other ranks. Among other
/// programs, the first one that ended is reported. If all failed ranks had only waited, the reported rank is the one
/// that was still running without a record when `grace` expired. It was stopped, or hangs.
struct RankFailure {
    int rank = 0;
    pid_t process = 0;
    int exit_status = 0;  ///< 0 if a signal ended it
    int signal = 0;       ///< 0 if it exited by itself
    bool silent = false;  ///< made no progress, and neither failed nor ended before `launch` ended it
    int stopped_by = 0;   ///< the signal that had stopped the process of a silent rank, if any
    std::vector<std::string> last_lines = {};  ///< last lines of its standard error, at most 10
    std::string message = {};                  ///< message of the exception that LaunchOptions::function threw
    /// "rank 2 failed first: the data are missing", "rank 1 failed first: exit status 3", "rank 1 failed first: killed
    /// by signal 9 (SIGKILL)"
    std::string str() const;
};

/// Options of `launch`.
struct LaunchOptions {
    /// Program and arguments; a name without a slash is searched for in PATH.
    std::vector<std::string> command = {};
    /// Function that each rank calls instead of running a program, in a process forked from this one. The child has all
    /// of this process's state except threads and devices (see launch). It exits when the function returns: with status
    /// 0, or 1 if the function throws.
    std::function<void(const RankInfo& rank)> function = {};
    int processes = 1;  ///< number of processes on this host: 1 to 1024
    int nodes = 1;      ///< number of hosts; each calls `launch` with the same numbers
    /// Rank of this host, from 0. With several hosts it is required, as are address and port.
    std::optional<int> node_rank = {};
    std::string master_addr = {};  ///< address of the host of rank 0; default with one host: 127.0.0.1
    int master_port = 0;           ///< 0: a free port, different for each attempt; with one host only
    int max_restarts = 0;          ///< number of attempts after the first; with one host only
    /// Limits each process to as many cores as its share of this process's cores. Binds it to the NUMA nodes of that
    /// share, close to its memory. If false, each process uses all cores.
    bool bind_cores = true;
    /// Prefixes lines of both streams with "[rank]:".
    bool prefix = false;
    /// Forwards a line that several ranks write to standard error only once: the n-th line of one rank is compared with
    /// the n-th line of the others. Log files get all lines.
    bool same_lines_once = false;
    /// Directory of the files attempt_A/RANK/stdout.log and stderr.log.
    std::filesystem::path log_dir = {};
    /// Streams that are written only to files, and streams that are written to files and also, with "[rank]:" before
    /// every line, to the console. One entry per local rank, or empty. `tee` overrides `redirects`.
    std::vector<Streams> redirects = {}, tee = {};
    /// Signals that are forwarded to all ranks. SIGINT, SIGTERM, SIGHUP and SIGQUIT also end the run. SIGUSR1, SIGUSR2
    /// and SIGXCPU end it if a rank ends by one of them, or with the status 128 + signal.
    std::vector<int> forwarded_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};
    /// Time that the other ranks have to report errors after a rank has failed; also the time between SIGTERM and
    /// SIGKILL.
    std::chrono::milliseconds grace{5000};
    /// Time that ranks have to save and exit after a signal that ends the run; then SIGKILL. A second such signal, at
    /// least StopSignals::coalesce_window later, sends SIGKILL at once.
    std::chrono::milliseconds stop_grace{30000};
    /// Called after every failure that is followed by a restart, before the restart.
    std::function<void(const RankFailure&)> on_restart = {};
};

/// Result of `launch`.
struct LaunchResult {
    std::optional<RankFailure> failure = {};  ///< failure of the last attempt
    int restarts = 0;                         ///< number of restarts
    int signal = 0;                           ///< signal from outside that ended the run
    bool killed = false;                      ///< a rank was killed by a signal instead of exiting
    /// Whether part of the prefixed output of ranks could not be written, for example to a full disk. A closed pipe
    /// does not count.
    bool lost_output = false;
    bool success() const { return !failure && signal == 0; }
    /// One line: how the run ended.
    std::string str() const;
};

}  // namespace lockstep
