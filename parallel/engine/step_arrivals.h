// Merged logs of several processes: when each rank arrived at the collectives of a step.
#pragma once

#include <vector>

#include "lockstep/runtime/step_log.h"

namespace lockstep {

class Communicator;

/// Fills in arrivals and the slowest rank, where all ranks can say when they came. Collective.
void add_arrivals(std::vector<LoggedStep>& steps, Communicator& job);

}  // namespace lockstep
