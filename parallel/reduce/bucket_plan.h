// The parameters of a program that are reduced, their buckets, and the order.
#pragma once

#include <set>
#include <vector>

#include "lockstep/parallel/reduce/ranks.h"
#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/reduce/used_parameters.h"
#include "lockstep/parallel/schedule/batch_program.h"

namespace lockstep {

struct BucketPlan {
    std::set<ParameterId> parameters;
    std::vector<Bucket> buckets;    ///< in the order in which backward finishes them
    std::vector<RecordPair> ready;  ///< by bucket: after which records it is reduced

    /// `used`: the parameters that all ranks use; null: those that the program uses itself. Throws InvalidArgument if
    /// shards give gradients to different parameters, and for unused parameters if the ranks do not allow them.
    BucketPlan(const EngineMemory& memory, const ReductionMemory& reduction, Ranks& ranks, const BatchProgram& batch,
               const UsedParameters* used);
};

}  // namespace lockstep
