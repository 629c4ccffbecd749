// 16-bit copies of parameters (Autocast), which are computed for all of a device's shards at once.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Removes the records that convert whole parameters to 16-bit floats from `records`, which are those of forward. Their
/// results are equal on all shards. Excluded are records whose result outlives the shard's work: outputs, and inputs of
/// records that span shards or commit.
std::vector<ParameterCast> take_parameter_casts(std::vector<Record>& records, const std::vector<Record>& commits,
                                                const std::vector<Operand>& outputs, const ParameterStore& store);

/// Elements of an arena that are converted by one kernel.
struct CastRange {
    int arena = 0;
    DType dtype = DType::bf16;
    std::int64_t begin = 0, end = 0;
};
/// The casts of all `programs`, with neighbouring parameters in one range, also if there are small ones between them
/// that need no cast.
std::vector<CastRange> cast_ranges(const std::vector<const ShardProgram*>& programs,
                                   const std::vector<ArenaLayout>& arenas);

}  // namespace lockstep
