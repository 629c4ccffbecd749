// What all processes of a run must have alike: with other flags or data they would train something else together than
// any of them was told to, or wait for each other.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace CLI {
class App;
}  // namespace CLI

namespace program {

/// Lines such as "600 rows to train on". Throws UsageError on all ranks where those of one differ from those of rank 0,
/// with the first line that does, of both. Collective.
void require_same_on_ranks(lockstep::ProcessGroup& group, const std::vector<std::string>& own);

/// Likewise for the flags that were parsed, but for those that each process may have its own of: where it computes, how
/// it finds the others, and its files.
void require_same_flags(lockstep::ProcessGroup& group, const CLI::App& app);

}  // namespace program
