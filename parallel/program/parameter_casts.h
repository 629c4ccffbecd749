// Parameters in 16 bits (Autocast), which are made for all of a device's shards at once.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Takes the records that convert whole parameters to 16-bit floats out of `records`, those of forward. What they made
/// is the same on all shards. Left are those whose result lives longer than the shard's own work: outputs, and what
/// records that span shards or commit read.
std::vector<ParameterCast> take_parameter_casts(std::vector<Record>& records, const std::vector<Record>& commits,
                                                const std::vector<Operand>& outputs, const ParameterStore& store);

/// Elements of an arena that are converted by one kernel.
struct CastRange {
    int arena = 0;
    DType dtype = DType::bf16;
    std::int64_t begin = 0, end = 0;
};
/// What the casts of all `programs` need: parameters that are neighbours in one range.
std::vector<CastRange> cast_ranges(const std::vector<const ShardProgram*>& programs,
                                   const std::vector<ArenaLayout>& arenas);

}  // namespace lockstep
