// Operations between processes as parts of a schedule, on the stream for communication with other processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/reduce/ranks.h"
#include "lockstep/parallel/schedule/emitter.h"

namespace lockstep {

struct CollectiveSpec {
    std::string name;
    /// Runs one collective: on the memory of the device, if the host or the backend can access it, otherwise on the
    /// host's.
    std::function<void(Communicator&, const KernelArgs&)> body;
    std::vector<MemoryRef> in = {}, out = {};  ///< an output that is read is an input as well, as a whole or in part
    bool ranks_meet = true;                    ///< whether other ranks take part; if not, it works on host memory
    bool after_commits = false;                ///< when it runs, the step may have been committed in part
};

/// Enqueues it on the stream of collectives; all processes emit the same ones in the same order. If neither the host
/// nor the backend can access the device's memory, or a hook must be called, inputs and outputs are copied through
/// pinned memory. If a kernel of this process's backward has failed, the others are notified instead, as its data would
/// be invalid.
void emit_collective(Emitter& emitter, Ranks& ranks, CollectiveSpec spec);

/// Makes the commit stream wait for the collectives emitted so far: nothing is committed from here on if one has
/// failed. CPU devices get the failure from Health. `after_commits`: as in CollectiveSpec.
void emit_collective_check(Emitter& emitter, Ranks& ranks, bool after_commits);

/// Memory with the parts of all ranks, contiguous in the order of ranks.
class RankParts {
public:
    RankParts(const Topology& topology, std::vector<std::size_t> bytes, std::string_view tag);
    /// The `bytes` bytes of a rank's part from byte `offset` on.
    MemoryRef part_of(RankIndex rank, std::size_t offset, std::size_t bytes) const;
    /// Enqueues a gather of the parts of all ranks on every rank.
    void emit_gather(Emitter& emitter, Ranks& ranks) const;

private:
    std::vector<std::size_t> bytes_, begin_;
    std::shared_ptr<Buffer> memory_;
};

}  // namespace lockstep
