// MPI in this process: started when it is first needed, ended when the process ends well. Neither waits for ever.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

class MpiWorld {
public:
    /// Starts MPI unless it runs. Throws TransportError where mpirun has not started this process, when MPI has not
    /// started by the info's timeout, or when it gives less than MPI_THREAD_SERIALIZED.
    static MpiWorld& get(const GroupInfo& info);

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// To be held during every call of MPI. Locks nothing where MPI does that by itself.
    std::unique_lock<std::mutex> lock();
    /// From now on nothing here calls MPI: an operation that was not finished would write to memory that has been
    /// given back. mpirun ends a job one of whose processes ends without MPI_Finalize.
    static void give_up() noexcept { given_up_ = skip_finalize_ = true; }
    /// A group has failed: MPI_Finalize would wait for ranks that never come.
    static void skip_finalize() noexcept { skip_finalize_ = true; }
    static bool given_up() { return given_up_; }
    /// Whether this MPI takes memory of GPUs: what it says itself (MPIX_Query_cuda_support of Open MPI), unless
    /// LOCKSTEP_MPI_CUDA_AWARE (0 or 1) says otherwise.
    bool cuda_aware() const { return cuda_aware_; }
    /// Whether it may ask CUDA about the memory that it is given. An MPI that does not say what it knows may.
    bool may_call_cuda() const { return may_call_cuda_; }

private:
    explicit MpiWorld(std::chrono::milliseconds timeout);
    static void finalize();
    int rank_ = 0, size_ = 1;
    bool serial_ = false, cuda_aware_ = false, may_call_cuda_ = true;
    std::mutex mutex_;
    inline static std::chrono::milliseconds timeout_{};                       ///< for MPI_Init and MPI_Finalize
    inline static std::atomic<bool> given_up_{false}, skip_finalize_{false};  // read when the world may be gone
};

/// Throws TransportError unless `status` is MPI_SUCCESS. `call`: its name.
void require_mpi(int status, const char* call);

}  // namespace lockstep
