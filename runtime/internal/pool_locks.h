// The locks of all memory pools, held across a fork.
#pragma once

namespace lockstep {

void lock_pools();
void unlock_pools();

}  // namespace lockstep
