// The backend for memory of GPUs, one a rank.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/parallel/comm/nccl/nccl_link.h"
#include "lockstep/parallel/comm/transport.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::nccl {

/// Collectives are operations of NCCL's, enqueued on a stream; a thread of its own watches those under way, and gives
/// them up when a deadline passes, NCCL finds something wrong, or the group of host memory has ended. GPUs that wait
/// for a rank then go on, with numbers that nobody may use: `failure` says so before they do.
class NcclTransport final : public Transport {
public:
    NcclTransport(const TransportPlace& place, Device device, Stream* stream, std::shared_ptr<Transport> host);
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
    };

    /// One GPU for each rank, or TransportError names two that share one.
    void require_gpus_apart(const TransportPlace& place, Deadline deadline);
    /// One operation: `calls` as one group of NCCL's.
    void perform(std::string_view name, Deadline deadline, const Calls& calls);
    void copy_own(void* to, const void* from, std::size_t bytes);
    void wait(const Event& done);
    void watch();
    /// Under the lock: what is wrong by now with what is under way; empty if nothing is.
    std::string look();
    /// Under the lock.
    void fail(const std::string& reason) noexcept;
    void require_alive() const;

    const Device device_;
    const int rank_, size_;
    const std::chrono::milliseconds timeout_;  ///< of an operation, from when it is the first of those under way
    Stream& stream_;
    const bool waits_;  ///< until every operation is done
    std::shared_ptr<Transport> host_;
    std::unique_ptr<Link> link_;
    mutable std::mutex mutex_;  ///< of everything below, and of the calls of link_
    std::condition_variable changed_;
    std::deque<Pending> pending_;  ///< in order
    Deadline first_since_{};
    std::string failure_;
    bool stopping_ = false;
    std::thread watcher_;
};

}  // namespace lockstep::nccl
