// Flags and data must be the same in all processes of a run. Otherwise the processes would train a mixture of them or
// deadlock.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace CLI {
class App;
}  // namespace CLI

namespace program {

/// Lines such as "600 rows to train on". Throws UsageError on all ranks if those of one rank differ from those of rank
/// 0; the message has the first differing line of both. Collective.
void require_ranks_agree(lockstep::ProcessGroup& group, const std::vector<std::string>& own);

/// The same for the parsed flags, except those that may differ between processes: devices, rendezvous and files.
void require_same_flags(lockstep::ProcessGroup& group, const CLI::App& app);

}  // namespace program
