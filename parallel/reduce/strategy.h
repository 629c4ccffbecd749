// The strategies: within one process, or between several. What differs between them lies in the objects that they make
// for each program; programs, schedules and the training loop are the same.
#pragma once

#include <memory>

#include "lockstep/parallel/reduce/bucket_reduction.h"
#include "lockstep/parallel/reduce/ranks.h"
#include "lockstep/parallel/schedule/scheduled_program.h"

namespace lockstep {

class Strategy {
public:
    virtual ~Strategy() = default;
    /// What a program without gradients needs.
    virtual ProgramStrategy forward() = 0;
    /// What a program needs that goes backward. `used`: the parameters that all ranks use, for which it brings
    /// gradients together; null: those that it uses itself.
    virtual ProgramStrategy training(const BatchProgram& batch, const ReductionSpec& spec,
                                     const UsedParameters* used) = 0;
};

/// This process trains alone where `ranks` have no job. `fast`: several processes use the backend's own all-reduce. All
/// arguments outlive the strategy.
std::unique_ptr<Strategy> make_strategy(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction,
                                        Ranks& ranks, bool fast);

}  // namespace lockstep
