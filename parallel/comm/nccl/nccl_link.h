// A communicator of NCCL with bounded waits that can be interrupted.
#pragma once

#include <nccl.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep::nccl {

/// Used by one thread at a time, with the same GPU current as when it was created: even asking for failures changes a
/// communicator. Throws TransportError.
class Link {
public:
    /// Reason to stop waiting; empty: continue.
    using Interrupt = std::function<std::string()>;

    /// Collective. `id`: created by rank 0, passed to all ranks.
    Link(const ncclUniqueId& id, int rank, int size, Deadline deadline, Interrupt interrupt);
    ~Link();  ///< pending operations are aborted
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Makes the calls of `body` one group of operations, which starts as a whole.
    void group(Deadline deadline, const std::function<void(ncclComm_t)>& body);
    /// Asynchronous error of the communicator; empty: none.
    std::string failure() const;
    /// Releases the communicator, for `give_up`. Afterwards only `abort` and `finish` may be called, and do nothing.
    ncclComm_t take() noexcept { return std::exchange(communicator_, nullptr); }
    /// Aborts pending operations: kernels that wait for other ranks end. Waits until the streams have finished all work
    /// before an operation of the communicator, including host functions, so the caller must not hold locks that these
    /// need.
    static void give_up(ncclComm_t communicator) noexcept;
    void abort() noexcept { give_up(take()); }
    /// Called when nothing is in flight: notifies the other ranks. Gives up at the deadline.
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
