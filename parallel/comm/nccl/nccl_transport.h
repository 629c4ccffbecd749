// The backend for memory of GPUs, one per rank.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/nccl/nccl_link.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::nccl {

/// A rank's own part of an operation, which NCCL does not move.
struct OwnPart {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
};

/// Collectives are NCCL operations, enqueued on a stream. A watchdog thread aborts pending ones when a deadline passes,
/// NCCL reports an error, or the group of host memory has ended. GPUs that wait for a rank then continue with invalid
/// numbers; `failure` reports the failure before they do.
///
/// Host functions of the stream call `failure` and may call `abort`, while another thread waits for the stream. The
/// lock of these two is therefore never held during a call of CUDA or NCCL, and only the watchdog thread aborts.
class NcclTransport final : public Transport {
public:
    NcclTransport(const GroupInfo& info, Device device, Stream* stream, std::shared_ptr<Transport> host);
    ~NcclTransport() override;
    NcclTransport(const NcclTransport&) = delete;
    NcclTransport& operator=(const NcclTransport&) = delete;

    std::string_view backend() const override { return "nccl"; }
    Device device() const override { return device_; }
    Transport& on_host() override { return *host_; }

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) override {
        return host_->send(data, bytes, to, tag);
    }
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) override {
        return host_->receive(data, bytes, from, tag);
    }
    int announced(std::uint32_t tag) override { return host_->announced(tag); }
    void barrier(Deadline deadline) override { host_->barrier(deadline); }
    void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
    void all_gather(const void* in, void* out, std::span<const std::size_t> bytes, Deadline deadline) override;
    void gather(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) override;
    void scatter(const void* in, void* out, std::span<const std::size_t> bytes, int root, Deadline deadline) override;
    void all_to_all(const void* in, std::span<const std::size_t> sent, void* out, std::span<const std::size_t> received,
                    Deadline deadline) override;
    void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) override;
    void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root, Deadline deadline) override;
    void reduce_scatter(const void* in, void* out, std::span<const std::size_t> counts, DType dtype, ReduceOp op,
                        Deadline deadline) override;
    void abort(const std::string& reason) noexcept override;
    std::string failure() const override;

private:
    using Calls = std::function<void(ncclComm_t, cudaStream_t)>;
    struct Pending {
        std::string_view name;
        std::shared_ptr<Event> done;
        std::uint64_t number;  ///< unique
        bool has_end = false;  ///< `done` has been recorded
    };

    /// One GPU for each rank, or TransportError names two that share one.
    void require_distinct_gpus(const GroupInfo& info, Deadline deadline);
    /// Performs one operation: `calls` as one group of NCCL's, after the copy of the own part.
    void perform(std::string_view name, Deadline deadline, const Calls& calls, const OwnPart& own = {});
    /// The operation is in flight from here on, because the call that enqueues it may already wait for it. Returns its
    /// number.
    std::uint64_t begin(std::string_view name, const std::shared_ptr<Event>& done);
    void end_of(std::uint64_t number);
    void wait(const Event& done);
    void watch();
    /// Current error of the pending operations; empty: none.
    std::string look();
    /// The oldest operation in flight; nullopt when all are complete.
    std::optional<Pending> oldest();
    /// Records a failure; false if one is already recorded.
    bool note(const std::string& reason) noexcept;
    /// As `note`, and aborts the ranks' host transport as well.
    void fail(const std::string& reason) noexcept;
    void give_up() noexcept;
    void require_alive() const;

    const Device device_;
    const int rank_, size_;
    const std::chrono::milliseconds timeout_;  ///< time limit of an operation, from when it is the first one pending
    Stream& stream_;
    const bool waits_;  ///< until every operation is done
    std::shared_ptr<Transport> host_;
    std::unique_ptr<Link> link_;  ///< its functions are never called with mutex_, nor by a host function
    mutable std::mutex mutex_;    ///< guards all members below; held only briefly
    std::condition_variable changed_;
    std::deque<Pending> pending_;  ///< in order
    std::uint64_t operations_ = 0;
    Deadline first_since_{};
    std::string failure_;
    bool stopping_ = false;
    std::thread watcher_;
};

}  // namespace lockstep::nccl
