// The strategies: within one process, or between several. Their differences are in the objects that they create for
// each program; programs, schedules and the training loop are the same.
#pragma once

#include <memory>

#include "lockstep/parallel/reduce/bucket_reduction.h"
#include "lockstep/parallel/reduce/ranks.h"
#include "lockstep/parallel/schedule/scheduled_program.h"

namespace lockstep {

class Strategy {
public:
    virtual ~Strategy() = default;
    /// The strategy's part of a program without gradients.
    virtual ProgramStrategy forward() = 0;
    /// The strategy's part of a program with a backward. `used`: the parameters that all ranks use, whose gradients it
    /// reduces; null: those that the program uses itself.
    virtual ProgramStrategy training(const BatchProgram& batch, const ReductionSpec& spec,
                                     const UsedParameters* used) = 0;
};

/// This process trains without others if `ranks` has no job. `fast`: several processes use the backend's own
/// all-reduce. All arguments must outlive the strategy.
std::unique_ptr<Strategy> make_strategy(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction,
                                        Ranks& ranks, bool fast);

}  // namespace lockstep
