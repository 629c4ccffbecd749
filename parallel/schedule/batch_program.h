// The shard programs of one batch size.
#pragma once

#include <memory>

#include "lockstep/parallel/program/shard_program.h"
#include "lockstep/runtime/placement.h"

namespace lockstep {

/// Full shards share a program, a shorter last shard has its own.
struct BatchProgram {
    BatchCut cut;
    Pass pass = Pass::inference;
    std::shared_ptr<const ShardProgram> full;
    std::shared_ptr<const ShardProgram> last;  ///< equals `full` if the last shard is full
    ShardRange held;                           ///< the shards that this process computes, of those present
    const ShardProgram& of(int shard) const { return cut.is_last(shard) ? *last : *full; }
    bool uneven() const { return full != last; }
};

/// Numbers of two records: one in the program of the full shards, one in that of the last shard. They run in parallel,
/// or are the progress of each program; -1 if a program has ended or not begun.
struct RecordPair {
    long full = -1, last = -1;
};

}  // namespace lockstep
