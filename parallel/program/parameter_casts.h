// Copies of parameters in 16 bits (Autocast), or in the order in which kernels read them, which are made for all of a
// device's shards at once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Removes the records that convert whole parameters to 16-bit floats or to another order of elements, and those that
/// change the order of such a copy if nothing reads it in its first order. The copies are equal on all shards. Excluded
/// are records whose result outlives the shard's work: outputs, and inputs of records that span shards or commit.
void take_parameter_casts(ShardProgram& program, const ParameterStore& store);

/// Elements of an arena that are converted in order, or one parameter whose elements change their order.
struct CastRange {
    int arena = 0;
    DType dtype = DType::bf16;
    std::int64_t begin = 0, end = 0;
    std::optional<TensorMeta> arranged = {};  ///< the copy of a parameter whose elements change their order
};
/// The casts of all `programs`, which agree. Neighbouring parameters are in one range, also if there are small ones
/// between them that need no cast.
std::vector<CastRange> cast_ranges(const std::vector<const ShardProgram*>& programs,
                                   const std::vector<ArenaLayout>& arenas);

/// Whether copies of the same parameters in one dtype have the same order of elements: one memory serves both programs.
bool casts_agree(const ShardProgram& a, const ShardProgram& b);

}  // namespace lockstep
