// A communicator of NCCL's. It never waits longer than it is told, and whoever waits can be called off.
#pragma once

#include <nccl.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep::nccl {

/// Used from one thread at a time, with the same GPU current as when it was made: even to ask for failures changes a
/// communicator. Throws TransportError.
class Link {
public:
    /// Why waiting is in vain; empty as long as it is not.
    using Interrupt = std::function<std::string()>;

    /// Collective. `id`: of rank 0, on all ranks.
    Link(const ncclUniqueId& id, int rank, int size, Deadline deadline, Interrupt interrupt);
    ~Link();  ///< what is still under way is given up
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Makes the calls of `body` one group of operations, which starts as a whole.
    void group(Deadline deadline, const std::function<void(ncclComm_t)>& body);
    /// What went wrong behind its back; empty if nothing has.
    std::string failure() const;
    /// The communicator, for `give_up`; nothing can be called after it but `abort` and `finish`, which do nothing.
    ncclComm_t take() noexcept { return std::exchange(communicator_, nullptr); }
    /// Ends what is under way: kernels that wait for other ranks end. Waits until the streams have done all that comes
    /// before an operation of the communicator, host functions too: the caller holds nothing that these may want.
    static void give_up(ncclComm_t communicator) noexcept;
    void abort() noexcept { give_up(take()); }
    /// Nothing is under way: the other ranks may be told so. Gives up at the deadline.
    void finish(Deadline deadline) noexcept;

private:
    /// Waits while NCCL works on a call in the background.
    void settle(ncclResult_t result, std::string_view what, Deadline deadline);
    void require(ncclResult_t result, std::string_view what) const;

    ncclComm_t communicator_ = nullptr;
    Interrupt interrupt_;
};

/// Throws TransportError unless `result` is a success.
void check(ncclResult_t result, std::string_view what);

}  // namespace lockstep::nccl
