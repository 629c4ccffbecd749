// Streams of virtual CPU devices: a queue and one worker thread each; the host's stream runs work at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>

#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

/// Runs work on the calling thread, at once: the host's stream, and every CPU stream in serial mode.
class InlineStream : public StreamImpl {
public:
    explicit InlineStream(Device device) : device_(device) {}
    void run(Work work, int threads) override;
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

/// A queue served by a thread of its own.
class QueueStream final : public InlineStream {
public:
    /// `patience`: how long its thread stays awake when it has to wait for an event.
    QueueStream(Device device, std::chrono::microseconds patience);
    ~QueueStream() override;
    void run(Work work, int threads) override;
    void record(EventImpl& event) override;
    void wait(const EventImpl& event) override;
    void synchronize() override;
    bool idle() const override;

private:
    struct Item {
        Work work;
        int threads = 0;  ///< 0: bookkeeping that also runs after a failure
    };
    struct Queue {
        std::mutex mutex;
        std::condition_variable changed;
        std::deque<Item> items;
        bool busy = false;
        bool closing = false;
        std::exception_ptr failure;
    };
    static void serve(const std::shared_ptr<Queue>& queue, Device device);
    void push(Item item);
    std::shared_ptr<Queue> queue_;
    std::chrono::microseconds patience_;
};

/// Threads that the library has started for CPU streams so far.
int cpu_worker_count();

}  // namespace lockstep
