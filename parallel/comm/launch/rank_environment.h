// Environment of a rank: its rank and job, and its cores.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/launch_options.h"

namespace lockstep {

struct RankSettings {
    int local_rank = 0;
    int attempt = 0;  ///< from 0
    std::string master_addr;
    int master_port = 0;
    std::size_t cores = 1;          ///< how many are its share
    std::string failure_file = {};  ///< empty: none
    std::string store_token = {};   ///< empty: what this process's environment says
};

int global_rank(const LaunchOptions& options, int local_rank);
/// This process's environment ("NAME=value") with what `launch` promises in it. Nothing says torchrun: its agent would
/// hold the port of rank 0's store.
std::vector<std::string> rank_environment(const LaunchOptions& options, const RankSettings& settings);
/// In a process that was forked to call a function: what a program would have found in its environment when it began.
void use_as_rank(const LaunchOptions& options, int cores);
/// Cores of process `index` of `count`: runs of neighbours, equally long, since equal shards would wait for the
/// shortest; with fewer cores than processes, one each, shared.
std::vector<int> share_of(const std::vector<int>& cores, int index, int count);

}  // namespace lockstep
