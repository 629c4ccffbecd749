// Host state that forward or loss read is frozen with the program. To detect changes, forward is traced again at
// intervals, and compared.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Selects the uses of a cached program that trace forward again: 1, 2, 3, 10, 100, 1000 and so on; with
/// LOCKSTEP_CHECK_TRACE=1 all.
class TraceChecks {
public:
    /// Counts a use. Returns whether it is one of those, or the last check did not pass.
    bool due();
    void passed() { next_ = uses_ < 3 ? uses_ + 1 : uses_ < 10 ? 10 : next_after(uses_); }

private:
    static std::uint64_t next_after(std::uint64_t uses);
    std::uint64_t uses_ = 0, next_ = 1;
};

/// The first difference between the trace of `kept` and `now`; empty if they have the same records.
std::string difference_of_traces(const ShardProgram& kept, const ForwardTrace& now, const ParameterStore& store);
/// Throws InvalidArgument, naming the first difference, unless `now` has the same records as the trace of `kept`.
void require_same_trace(const ShardProgram& kept, const ForwardTrace& now, const ParameterStore& store);

}  // namespace lockstep
