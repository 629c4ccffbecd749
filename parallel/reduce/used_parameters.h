// The parameters that get gradients on any rank, if ranks may use different ones (find_unused_parameters).
#pragma once

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "lockstep/parallel/reduce/arena_partition.h"
#include "lockstep/parallel/schedule/batch_program.h"
#include "lockstep/parallel/schedule/engine_memory.h"

namespace lockstep {

class Communicator;

/// Use of the parameters in a program of a rank and, after the all-reduce, in the programs that all ranks run in one
/// call.
class UsedParameters {
public:
    UsedParameters(const EngineMemory& memory, const BatchProgram& batch);

    /// Adds a gradient that other backwards have left.
    void add(ParameterId parameter) { numbers_[index(parameter)] = 1; }
    /// Records that this rank has no gradients in the program.
    void use_none();
    /// Makes it equal on all ranks. Collective.
    void bring_together(Communicator& ranks);

    std::set<ParameterId> parameters() const;
    /// For the order of buckets: when a bucket is ready in the program in which that takes longest.
    std::int64_t moment(const Bucket& bucket) const;
    /// Operations over all shards in backward that precede a bucket on every rank.
    int spans_before(const Bucket& bucket) const { return static_cast<int>(moment(bucket) >> bits_of_record); }
    /// For keys.
    std::string_view bytes() const {
        return {reinterpret_cast<const char*>(numbers_.data()), numbers_.size() * sizeof(std::int64_t)};
    }

private:
    /// A moment is one number, so that the ranks can compute the maximum: the number of preceding operations over all
    /// shards, then the record.
    static constexpr int bits_of_record = 32;
    std::size_t index(ParameterId parameter) const {
        return first_[static_cast<std::size_t>(parameter.arena)] + static_cast<std::size_t>(parameter.number);
    }

    std::vector<std::size_t> first_;     ///< by arena; the last entry is the number of parameters
    std::vector<std::int64_t> numbers_;  ///< one per parameter: whether it is used; then its moment
};

/// The record of backward that is operation `count` over all shards in `program`; the one before backward for 0.
long record_of_span(const ShardProgram& program, int count);

}  // namespace lockstep
