// Data that a launcher gives to a rank: its environment, and the file for its failure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/launch_options.h"
#include "lockstep/parallel/comm/report_failure.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

struct RankSettings {
    int local_rank = 0;
    int attempt = 0;  ///< from 0
    std::string master_addr;
    int master_port = 0;
    std::size_t cores = 1;          ///< size of its share
    std::string failure_file = {};  ///< empty: none
    std::string store_token = {};   ///< empty: as in this process's environment
};

int global_rank(const LaunchOptions& options, int local_rank);
/// This process's environment ("NAME=value") with the variables that `launch` documents. None of them identifies
/// torchrun, whose agent would hold the port of rank 0's store.
std::vector<std::string> rank_environment(const LaunchOptions& options, const RankSettings& settings);
/// For a process that was forked to call a function: sets the environment that a program would have been started with.
void set_up_rank(const LaunchOptions& options, int cores);
/// Cores of process `index` of `count`: contiguous ranges of equal length, since equal shards would wait for the
/// shortest. With fewer cores than processes, one core each, shared.
std::vector<int> share_of(const std::vector<int>& cores, int index, int count);

// The file in which a rank records its first failure.

/// Content written by `report_failure`.
struct FailureMark {
    std::chrono::steady_clock::time_point time;
    FailureCause cause = FailureCause::this_rank;
};

/// In memory, with a name that is valid while this process has it open: nothing is left behind, however the run ends.
class FailureFile {
public:
    FailureFile();
    /// Value of LOCKSTEP_FAILURE_FILE; empty if the system does not support such files.
    std::string path() const;
    /// Nullopt if the rank has recorded no failure.
    std::optional<FailureMark> mark() const;
    /// The message of the exception that ended a rank's function; written by the rank, which inherits this file.
    void write_message(const std::string& text) const noexcept;
    std::string message() const;

private:
    Descriptor file_;
};

}  // namespace lockstep
