#include "lockstep/parallel/data/internal/for_each_row.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/runtime/internal/cpu_topology.h"

namespace lockstep::internal {

void for_each_row(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::int64_t failed_row = std::numeric_limits<std::int64_t>::max();
    std::exception_ptr failure;
    const auto work = [&]() noexcept {
        while (!stop) {
            const std::int64_t row = next++;
            if (row >= count) return;
            try {
                body(row);
            } catch (...) {
                stop = true;
                const std::scoped_lock lock(mutex);
                if (row < failed_row) {
                    failed_row = row;
                    failure = std::current_exception();
                }
            }
        }
    };
    {
        std::vector<std::jthread> helpers;
        const std::int64_t wanted = std::min<std::int64_t>(threads > 0 ? threads : usable_cores(), count);
        try {
            while (std::ssize(helpers) + 1 < wanted) helpers.emplace_back(work);
        } catch (const std::system_error&) {  // the system has no more threads: those that run do it
        }
        work();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace lockstep::internal
