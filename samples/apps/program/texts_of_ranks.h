// What each process of a run has to say, for all of them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace program {

/// In order of ranks, on all of them. Collective.
std::vector<std::string> texts_of_ranks(lockstep::ProcessGroup& group, std::string own);

}  // namespace program
