// What a launcher is asked for, and what it says of a run.
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

/// Output streams of a process, numbered as torchrun does.
enum class Streams : std::uint8_t { none = 0, out = 1, err = 2, both = 3 };

/// The rank of an attempt in which something went wrong first; what others did because of it is not told. Ranks that
/// use process groups note when it did, and whether they had only waited for others in vain; of other programs the
/// first that ended is meant. Where all that failed had waited in vain, it is the rank that was still running, and had
/// noted nothing, when `grace` was over: it was stopped, or hangs.
struct RankFailure {
    int rank = 0;
    pid_t process = 0;
    int exit_status = 0;  ///< 0 when a signal ended it
    int signal = 0;       ///< 0 when it exited by itself
    bool silent = false;  ///< it went no further, and neither failed nor ended before `launch` ended it
    int stopped_by = 0;   ///< the signal that had stopped it where it is silent, if one had
    std::vector<std::string> last_lines = {};  ///< of its standard error, at most 10
    std::string message = {};                  ///< of what LaunchOptions::function threw in it
    /// "rank 2 failed first: the data are missing", "rank 1 failed first: exit status 3", "rank 1 failed first: killed
    /// by signal 9 (SIGKILL)"
    std::string str() const;
};

struct LaunchOptions {
    /// Program and arguments; a name without a slash is sought along PATH.
    std::vector<std::string> command = {};
    /// Instead of a program: what each rank calls, in a process forked from this one. It has all that this process has
    /// at that time but threads and devices (see launch), and ends with the function: with 0, or 1 where that throws.
    std::function<void(const RankInfo& rank)> function = {};
    int processes = 1;  ///< on this machine: 1 to 1024
    int nodes = 1;      ///< machines on each of which `launch` is called with the same numbers
    /// Of this machine, from 0. Must be given, with address and port, when there are several.
    std::optional<int> node_rank = {};
    std::string master_addr = {};  ///< of the machine with rank 0; with one node 127.0.0.1 unless given
    int master_port = 0;           ///< 0: a free one, another for every attempt; with one node only
    int max_restarts = 0;          ///< attempts after the first; with one node only
    /// Each process uses as many cores as its share of this process's has, and stays on the NUMA nodes of the share,
    /// near its memory; otherwise each uses all.
    bool bind_cores = true;
    /// Lines of both streams begin with "[rank]:".
    bool prefix = false;
    /// A line that several ranks write to standard error passes on to this process's once: the n-th of a rank is the
    /// same as the n-th of another. Files get all.
    bool same_lines_once = false;
    /// Files attempt_A/RANK/stdout.log and stderr.log lie in here.
    std::filesystem::path log_dir = {};
    /// What goes to files alone, and what to files and, with "[rank]:" before every line, to the console too: one
    /// entry per local rank, or none at all. Where both name a stream, `tee` holds.
    std::vector<Streams> redirects = {}, tee = {};
    /// Signals that are passed on to all ranks. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the run as well; SIGUSR1,
    /// SIGUSR2 and SIGXCPU do when a rank ends by one of them, or with the status 128 + signal.
    std::vector<int> passed_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};
    /// How long the others may run after a rank has failed, to say what they miss; and then again between SIGTERM and
    /// SIGKILL.
    std::chrono::milliseconds grace{5000};
    /// How long ranks may take to save and end once a signal that ends the run was passed on; then SIGKILL. The same or
    /// another such signal that comes StopSignals::one_wish later or more means SIGKILL at once.
    std::chrono::milliseconds stop_grace{30000};
    /// Hears of every failure after which the ranks are started again, before they are.
    std::function<void(const RankFailure&)> on_restart = {};
};

struct LaunchResult {
    std::optional<RankFailure> failure = {};  ///< of the last attempt
    int restarts = 0;                         ///< how many there were
    int signal = 0;                           ///< that came from outside and ended the run
    bool killed = false;                      ///< a rank was ended by a signal, and did not end by itself
    /// This process could not write all that ranks printed with prefixes: a full disk, but not a reader who left.
    bool lost_output = false;
    bool success() const { return !failure && signal == 0; }
    /// One line: how the run ended.
    std::string str() const;
};

}  // namespace lockstep
