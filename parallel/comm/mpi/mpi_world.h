// MPI in this process: started on first use, finalized when the process ends normally. Neither waits forever.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

// A thread for MPI calls that wait for other ranks without a deadline, so that callers can stop waiting.

/// The one thread of the process that starts MPI and, as MPI requires, finalizes it.
class MpiThread {
public:
    /// Makes `call` on that thread, and throws its exceptions. Returns false at the deadline: then the call may still
    /// be in progress, or never end, and the data that it uses must stay valid.
    static bool run(std::function<void()> call, Deadline deadline);
};

class MpiWorld {
public:
    /// Starts MPI if it is not running. Throws TransportError if mpirun has not started this process, if MPI has not
    /// started by the info's timeout, or if it provides less than MPI_THREAD_SERIALIZED.
    static MpiWorld& get(const GroupInfo& info);

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// To be held during every call of MPI, one at a time, and not while a thread polls. Locks nothing if MPI locks by
    /// itself.
    std::unique_lock<std::mutex> lock();
    /// The right to make a call that waits for other ranks, which one thread of the process has at a time.
    class Turn {
    public:
        /// Throws TransportError if the other threads have not returned theirs by `deadline`.
        Turn(MpiWorld& world, Deadline deadline);
        ~Turn();
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

    private:
        MpiWorld& world_;
    };
    /// No calls of MPI are made from now on: an unfinished operation would write to memory that has been freed. mpirun
    /// ends a job if one of its processes ends without MPI_Finalize.
    static void give_up() noexcept { given_up_ = skip_finalize_ = true; }
    /// A group has failed: MPI_Finalize would wait for ranks that never arrive.
    static void skip_finalize() noexcept { skip_finalize_ = true; }
    static bool given_up() { return given_up_; }
    /// Whether this MPI accepts memory of GPUs, according to MPIX_Query_cuda_support of Open MPI, unless
    /// LOCKSTEP_MPI_CUDA_AWARE (0 or 1) overrides it.
    bool cuda_aware() const { return cuda_aware_; }
    /// Whether it may query CUDA about the memory that it is given. True for an MPI that does not report it.
    bool may_call_cuda() const { return may_call_cuda_; }

private:
    explicit MpiWorld(std::chrono::milliseconds timeout);
    static void finalize();
    int rank_ = 0, size_ = 1;
    bool serial_ = false, cuda_aware_ = false, may_call_cuda_ = true;
    std::mutex mutex_;  ///< for `lock`
    std::mutex turns_;  ///< guards `taken_`
    std::condition_variable returned_;
    bool taken_ = false;                                                      ///< a thread has the turn
    inline static std::chrono::milliseconds timeout_{};                       ///< for MPI_Init and MPI_Finalize
    inline static std::atomic<bool> given_up_{false}, skip_finalize_{false};  // read when the world may be destroyed
};

/// Throws TransportError unless `status` is MPI_SUCCESS. `call`: its name.
void require_mpi(int status, const char* call);

}  // namespace lockstep
