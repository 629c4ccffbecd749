// Operations between processes as tasks of a program, on the stream where this process talks to the others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/internal/engine_context.h"
#include "lockstep/parallel/internal/schedule.h"

namespace lockstep {

/// A task for the exchange stream: `body` makes one collective. All processes place the same ones in the same order.
/// Where a kernel of this process's backward has failed, the others are told instead: what it would send is nothing.
TaskSpec exchange_task(const EngineContext& context, std::string name,
                       std::function<void(Communicator&, const Invocation&)> body, std::vector<PlaceRef> in,
                       std::vector<PlaceRef> out);

/// Memory that one rank after the other fills: the parts lie behind each other in order of ranks.
class RankParts {
public:
    RankParts(const EngineContext& context, std::vector<std::size_t> bytes, std::string_view tag);
    /// `bytes` bytes from byte `offset` of a rank's part on.
    PlaceRef at(int rank, std::size_t offset, std::size_t bytes) const;
    /// Enqueues that every rank gets the parts of all others.
    void gather(const EngineContext& context, Schedule& schedule) const;

private:
    std::vector<std::size_t> bytes_, begin_;
    std::shared_ptr<Buffer> memory_;
};

}  // namespace lockstep
