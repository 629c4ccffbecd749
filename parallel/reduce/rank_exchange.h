// A reduce-scatter along the tree of shards: each rank adds up its part of a bucket and needs that part of every other
// rank's sums.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/reduce/ranks.h"
#include "lockstep/parallel/reduce/reduction_memory.h"
#include "lockstep/parallel/schedule/emitter.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

/// The exchange of one bucket, on the stream for communication with other processes. Ranks of one host first add up as
/// far as the tree allows, so that each node of a host's run is sent once between two hosts.
class RankExchange {
public:
    /// `after_commits`: when it runs, the step may have been committed in part.
    RankExchange(Emitter& emitter, Ranks& ranks, ReductionMemory& reduction, const Bucket& bucket, bool after_commits);

    /// Writes the sum over all ranks to this rank's part of `target`, or adds it. `nodes`: by rank, the nodes of the
    /// tree over [0, present) whose sums it has, in order; `own`: the memory of this rank's sum of a node, with the
    /// length of the bucket.
    void emit_sum(const std::vector<std::vector<ShardRange>>& nodes, int present,
                  const std::function<MemoryRef(std::size_t number)>& own, bool accumulate, const MemoryRef& target);
    /// Divides this rank's part of `target` by the number of ranks.
    void emit_average(const MemoryRef& target);
    /// All ranks receive the parts of all others.
    void emit_gather(const MemoryRef& target);

private:
    using Sizes = std::vector<std::size_t>;
    using Nodes = std::vector<std::vector<ShardRange>>;
    using Own = std::function<MemoryRef(std::size_t)>;
    /// The sum over a node.
    using Sum = std::pair<ShardRange, MemoryRef>;

    std::vector<Sum> from_ranks(const Nodes& nodes, const Own& own);
    std::vector<Sum> from_hosts(const Nodes& nodes, int present, const Own& own);
    /// Phase one: this rank's share of the data for every host, summed over the ranks of this host, into memory `first`
    /// and following, one piece per node of this host.
    void sum_inside(const Nodes& nodes, const std::vector<ShardRange>& host_nodes, const Own& own, std::size_t first);
    /// One all_to_all into memory `number`. Returns the location of each rank's data.
    std::vector<MemoryRef> exchange(std::size_t number, const MemoryRef& from, const Sizes& sent,
                                    const Sizes& received);
    void add_up(std::vector<Sum> sums, bool accumulate, const MemoryRef& out);

    /// The ranks of host `to` whose parts are added up by the one at `position` among the ranks of host `by`.
    ShardRange share(int by, int position, int to) const;
    std::size_t bytes_of(ShardRange ranks) const;
    int rank() const { return emitter_.topology().rank.number(); }
    std::size_t own_bytes() const { return parts_[static_cast<std::size_t>(rank())]; }
    MemoryRef part_of(MemoryRef ref, ShardRange ranks) const;
    MemoryRef part_of(const MemoryRef& ref) const { return part_of(ref, {rank(), rank() + 1}); }
    TensorMeta flat(std::size_t bytes) const;
    void run(std::shared_ptr<const Operation> operation, std::vector<MemoryRef> refs, const MemoryRef& out);

    Emitter& emitter_;
    Ranks& ranks_;
    ReductionMemory& reduction_;
    bool after_commits_;
    DType dtype_;
    Sizes parts_;  ///< bytes of each rank's part
    HostLayout hosts_;
};

}  // namespace lockstep
