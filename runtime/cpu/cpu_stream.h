// Streams of virtual CPU devices, and of the host.
#pragma once

#include <memory>

#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

/// Runs work at once on the calling thread: the host's stream, and every CPU stream in serial mode.
class InlineStream : public StreamImpl {
public:
    explicit InlineStream(Device device) : device_(device) {}
    void run(Work work, int threads) override;
    bool runs_at_once() const override { return true; }
    void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) override;
    void copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                 Device from_device, std::size_t row_bytes, std::size_t rows) override;
    void fill(void* to, std::uint8_t value, std::size_t bytes) override;
    void callback(std::function<void()> function) override;
    void record(EventImpl& event) override;
    void wait(const EventImpl& event) override;
    void synchronize() override;
    bool idle() const override { return true; }

protected:
    Device device_;
};

/// Work is queued.
class QueueStream final : public InlineStream {
public:
    QueueStream(Device device, CpuQueue::Part part) : InlineStream(device), queue_(CpuQueue::make(device, part)) {}
    ~QueueStream() override { queue_->let_thread_end(); }
    void run(Work work, int threads) override;
    bool runs_at_once() const override { return false; }
    void record(EventImpl& event) override;
    void wait(const EventImpl& event) override;
    void synchronize() override { queue_->synchronize(); }
    bool idle() const override { return queue_->idle(); }

private:
    std::shared_ptr<CpuQueue> queue_;
};

}  // namespace lockstep
