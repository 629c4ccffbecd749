// Worker threads that read rows into host memory. They touch no device.
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
    /// `slots` pieces of memory may be filled at the same time.
    BatchReader(std::shared_ptr<const detail::RowSource> source, int workers, std::size_t slots);
    ~BatchReader();
    BatchReader(const BatchReader&) = delete;
    BatchReader& operator=(const BatchReader&) = delete;

    /// Has `rows` of that epoch read to `to` (one address a field); both stay until the slot is filled. Without workers
    /// it is read at once.
    void fill(std::size_t slot, std::span<const std::int64_t> rows, std::span<std::byte* const> to, EpochKey epoch);
    /// It is filled, without an error.
    bool ready(std::size_t slot);
    /// Waits for the slot; rethrows what reading threw.
    void wait(std::size_t slot);
    /// Forgets what has not begun, waits for the rest.
    void cancel() noexcept;
    /// The caller is one of its threads: what it reads has called exit().
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
