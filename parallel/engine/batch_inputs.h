// The inputs of one call: checked, cut, and copied to the inputs of the shards' programs.
#pragma once

#include <vector>

#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/schedule/scheduled_program.h"

namespace lockstep {

class BatchInputs {
public:
    /// Throws InvalidArgument if there is no tensor input, and for scalars, empty batches, batch sizes that differ, and
    /// tensors whose cut differs from this engine's shards. `own_rows`: whole batches contain the rows of this process
    /// only, not of all processes.
    BatchInputs(const EngineParts& parts, const std::vector<BatchInput>& inputs, bool own_rows);

    const BatchCut& cut() const { return cut_; }
    /// dtype and shape of every input (whole batches).
    const std::vector<TensorMeta>& metas() const { return metas_; }
    /// Copies pageable memory to the staging memory of `slot`, so that the caller may overwrite it on return. Must be
    /// called before `scatter`.
    void stage(InFlight& in_flight, int slot);
    /// Enqueues the copies of the rows that `program` reads, on the lanes of its shards.
    void scatter(const ScheduledProgram& program, const Instance& instance) const;

private:
    /// A whole batch, row-major, in memory that copies may read.
    struct Source {
        Tensor tensor;
        const char* rows = nullptr;
    };
    void scatter_whole(const Source& source, std::size_t input, const ScheduledProgram& program,
                       const Instance& instance) const;
    void scatter_cut(const ShardedTensor& tensor, std::size_t input, const ScheduledProgram& program,
                     const Instance& instance) const;

    const EngineParts& parts_;
    const std::vector<BatchInput>& inputs_;
    BatchCut cut_;
    std::vector<TensorMeta> metas_;
    std::vector<Source> sources_;  ///< by input
};

}  // namespace lockstep
