// Merged logs of several processes: when each rank arrived at the collectives of a step.
#pragma once

#include <vector>

#include "lockstep/runtime/step_log.h"

namespace lockstep {

class Communicator;

/// Fills in arrivals and the slowest rank, if all ranks can report their arrival. Collective.
void add_arrivals(std::vector<LoggedStep>& steps, Communicator& job);

}  // namespace lockstep
