// Worker threads that read rows into host memory. They access no device.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/parallel/data/dataset.h"

namespace lockstep::internal {

class BatchReader {
public:
    /// Up to `slots` pieces of memory are filled at the same time.
    BatchReader(std::shared_ptr<const detail::RowSource> source, int workers, std::size_t slots);
    ~BatchReader();
    BatchReader(const BatchReader&) = delete;
    BatchReader& operator=(const BatchReader&) = delete;

    /// Starts reading `rows` of that epoch into `to` (one address per field); both must stay valid until the slot is
    /// filled. Without workers it reads at once.
    void fill(std::size_t slot, std::span<const std::int64_t> rows, std::span<std::byte* const> to, EpochKey epoch);
    /// Whether it is filled, without an error.
    bool ready(std::size_t slot);
    /// Waits for the slot; rethrows exceptions of reading.
    void wait(std::size_t slot);
    /// Discards requests that have not begun, and waits for the others.
    void cancel() noexcept;
    /// Whether the caller is one of its threads, because code called for reading has called exit().
    bool is_reading_here() const;

private:
    struct Slot {
        std::span<const std::int64_t> rows;
        std::span<std::byte* const> to;
        EpochKey epoch;
        bool filled = false;
        std::exception_ptr error;
    };
    void serve();
    void read(Slot& slot) const noexcept;

    std::shared_ptr<const detail::RowSource> source_;
    std::mutex mutex_;
    std::condition_variable work_, done_;
    std::deque<std::size_t> queue_;
    std::vector<Slot> slots_;
    int busy_ = 0;
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace lockstep::internal
