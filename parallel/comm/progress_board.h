// Where the ranks of a group tell how far they have come, so that an error can name who is missing. Every rank writes
// the number of its operation to the store now and then, and when it is held up; one that fails looks who has not come
// so far.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/parallel/store.h"

namespace lockstep {

class ProgressBoard {
public:
    /// `store`: the group's own.
    ProgressBoard(Store& store, int rank, int size);
    ~ProgressBoard();
    ProgressBoard(const ProgressBoard&) = delete;
    ProgressBoard& operator=(const ProgressBoard&) = delete;

    void begin(std::string_view operation, std::uint64_t number);
    void end();
    /// After a failure in operation `number`: "ranks 1, 3 have not come so far (rank 1 was last seen in all_reduce
    /// number 4)", or nothing when all have, or nobody can tell. Takes at most about 0.7 s.
    std::string missing(std::string_view operation, std::uint64_t number) noexcept;

private:
    void watch();
    void publish(const std::string& text);

    const int rank_, size_;
    std::unique_ptr<Store> store_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string operation_;
    std::uint64_t number_ = 0;  ///< of the last operation that began
    bool under_way_ = false;
    std::uint64_t published_ = 0;  ///< the last one that was told
    std::chrono::steady_clock::time_point began_{};
    bool stopping_ = false;
    std::thread watcher_;
};

}  // namespace lockstep
