// Memory of a shard program's temporaries: one workspace per shard, offsets computed once, memory shared by buffers
// whose lifetimes do not overlap.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

/// A temporary with the records [first, last] during which it is live.
struct PlannedBuffer {
    std::size_t bytes = 0;
    long first = 0, last = -1;  ///< last < first: never used
    std::size_t offset = 0;     ///< result
};

/// Sets the offsets (multiples of 256) and returns the bytes of the workspace. Greedy by size, as in Pisarchyk and Lee
/// (2020), "Efficient Memory Management for Deep Neural Net Inference".
std::size_t plan_memory(std::vector<PlannedBuffer>& buffers);

}  // namespace lockstep
