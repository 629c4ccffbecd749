// Operations between processes as parts of a program, on the stream where this process talks to the others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/engine_context.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep {

struct ExchangeSpec {
    std::string name;
    /// Makes one collective: on the memory of the device, where the host or `gpu_job` can use it, else on the host's.
    std::function<void(Communicator&, const Invocation&)> body;
    std::vector<PlaceRef> in = {}, out = {};  ///< what is read of an output is an input too, which may be a part of it
    bool collective = true;                   ///< processes meet in it; else it is always on host memory
    bool behind_commits = false;              ///< when it runs, the step may have been committed in part
};

/// Enqueues it on the exchange stream; all processes place the same ones in the same order. Where neither the host nor
/// the backend can use the device's memory, or a hook must be called, inputs and outputs go through pinned memory.
/// Where a kernel of this process's backward has failed, the others are told instead: what it would send is nothing.
void place_exchange(EngineContext& context, Schedule& schedule, ExchangeSpec spec);

/// On the stream that commits, behind a wait for what has been exchanged: nothing is committed from here on where an
/// exchange has failed. CPU devices know without (Health). `behind_commits`: as in ExchangeSpec.
void place_exchange_check(EngineContext& context, Schedule& schedule, bool behind_commits);

/// Memory that one rank after the other fills: the parts lie behind each other in order of ranks.
class RankParts {
public:
    RankParts(const EngineContext& context, std::vector<std::size_t> bytes, std::string_view tag);
    /// `bytes` bytes from byte `offset` of a rank's part on.
    PlaceRef at(int rank, std::size_t offset, std::size_t bytes) const;
    /// Enqueues that every rank gets the parts of all others.
    void gather(EngineContext& context, Schedule& schedule) const;

private:
    std::vector<std::size_t> bytes_, begin_;
    std::shared_ptr<Buffer> memory_;
};

}  // namespace lockstep
