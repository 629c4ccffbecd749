// Gathers one text from each process of a run on all of them.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace program {

/// The text of each rank, in order of ranks, on all of them. Collective.
std::vector<std::string> gather_strings(lockstep::ProcessGroup& group, std::string own);

}  // namespace program
