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
    std::shared_ptr<const ShardProgram> last;  ///< the same as `full` where the last shard is full
    ShardRange held;                           ///< the shards that this process computes, of those present
    const ShardProgram& of(int shard) const { return cut.is_last(shard) ? *last : *full; }
    bool uneven() const { return full != last; }
};

/// Records that run side by side, or up to which something has run: numbers in the full shards' program and in the last
/// shard's; -1 where it has ended, or not begun.
struct RecordPair {
    long full = -1, last = -1;
};

}  // namespace lockstep
