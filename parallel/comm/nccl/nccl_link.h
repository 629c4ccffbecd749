// A communicator of NCCL with bounded waits that can be interrupted.
#pragma once

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep::nccl {

/// Operations are started by one thread at a time, with the same GPU current as when it was created. `failure` and
/// `take` may be called by any thread at any time: a lock keeps the calls of NCCL apart, as even asking for failures
/// changes a communicator. No lock is held while a call waits for other ranks. Throws TransportError.
class Link {
public:
    /// Reason to stop waiting; empty: continue.
    using Interrupt = std::function<std::string()>;

    /// Collective. `id`: created by rank 0, passed to all ranks.
    Link(const ncclUniqueId& id, int rank, int size, Deadline deadline, Interrupt interrupt);
    ~Link();  ///< pending operations are aborted
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Makes the calls of `body`, none of which may wait, one group of operations, which starts as a whole. Throws the
    /// reason of `interrupt` if the communicator was taken.
    void group(Deadline deadline, const std::function<void(ncclComm_t)>& body);
    /// Asynchronous error of the communicator; empty: none, or another thread is in a call of NCCL, which reports it.
    std::string failure();
    /// Releases the communicator, for `give_up`, after a reason to interrupt exists: a thread that waits in `group`
    /// throws it. Afterwards only `abort` and `finish` may be called, and do nothing.
    ncclComm_t take() noexcept;
    /// Aborts pending operations: kernels that wait for other ranks end. Waits until the streams have finished all work
    /// before an operation of the communicator, including host functions, so the caller must not hold locks that these
    /// need.
    static void give_up(ncclComm_t communicator) noexcept;
    void abort() noexcept { give_up(take()); }
    /// Called when nothing is in flight: notifies the other ranks. Gives up at the deadline.
    void finish(Deadline deadline) noexcept;

private:
    /// Waits, without the lock, while NCCL works on a call in the background.
    void settle(ncclResult_t result, std::string_view what, Deadline deadline);
    /// With the lock.
    void require_communicator() const;

    std::mutex calls_;  ///< held during each call of NCCL, and for `communicator_`
    ncclComm_t communicator_ = nullptr;
    Interrupt interrupt_;
};

/// Throws TransportError unless `result` is a success.
void check(ncclResult_t result, std::string_view what);

}  // namespace lockstep::nccl
