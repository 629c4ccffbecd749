#include "lockstep/runtime/internal/memory_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <unordered_map>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/live_memory.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/order_checker.h"

namespace lockstep {

namespace {

/// What no machine has: sizes up to here can be rounded and added without overflow.
constexpr std::size_t largest_block = std::size_t{1} << 60;

/// Block sizes are rounded up to an eighth of a power of two, so that a freed block fits the next similar request.
std::size_t rounded(std::size_t bytes) {
    if (bytes <= 512) return 512;
    const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes - 1) / 8, 512);
    return (bytes + step - 1) / step * step;
}

/// Cached memory of one device. Blocks go back to the stream they came from and are reused in its order.
class Pool {
public:
    explicit Pool(Device device) : device_(device) {}

    void* take(Stream& home, std::size_t bytes, std::string_view tag) {
        const std::scoped_lock lock(mutex_);
        if (bytes > largest_block) throw_out_of_memory(bytes, free_memory());
        const std::size_t size = rounded(bytes);
        if (stats_.limit != 0 && stats_.current + size > stats_.limit)
            throw_out_of_memory(bytes, stats_.limit - std::min(stats_.limit, stats_.current));
        void* memory = nullptr;
        auto& free = free_[&home];
        if (const auto found = free.find(size); found != free.end()) {
            memory = found->second;
            free.erase(found);
        } else {
            memory = backend_of(device_).allocate(device_.index(), size);
            if (!memory) {
                give_back_cached();
                memory = backend_of(device_).allocate(device_.index(), size);
            }
            if (!memory) throw_out_of_memory(bytes, free_memory());
            stats_.reserved += size;
        }
        stats_.current += size;
        stats_.peak = std::max(stats_.peak, stats_.current);
        held_[std::string(tag)] += size;
        blocks_[memory] = {size, std::string(tag)};
        if (!device_.is_host()) live_memory::add(memory, size);
        if (order_check::enabled()) order_check::name_memory(memory, size, fmt::format("{} of {}", tag, device_.str()));
        return memory;
    }

    void put_back(Stream& home, void* memory) {
        const std::scoped_lock lock(mutex_);
        const auto block = blocks_.find(memory);
        stats_.current -= block->second.bytes;
        held_[block->second.tag] -= block->second.bytes;
        live_memory::remove(memory);
        free_[&home].emplace(block->second.bytes, memory);
        blocks_.erase(block);
    }

    MemoryStats stats() {
        const std::scoped_lock lock(mutex_);
        return stats_;
    }
    void reset_peak() {
        const std::scoped_lock lock(mutex_);
        stats_.peak = stats_.current;
    }
    void set_limit(std::size_t bytes) {
        const std::scoped_lock lock(mutex_);
        stats_.limit = bytes;
    }
    void release_cached() {
        const std::scoped_lock lock(mutex_);
        give_back_cached();
    }
    std::mutex& mutex() { return mutex_; }

private:
    struct Block {
        std::size_t bytes;
        std::string tag;
    };

    void give_back_cached() {
        for (auto& [stream, blocks] : free_) {
            if (!blocks.empty()) stream->synchronize();
            for (auto& [bytes, memory] : blocks) {
                backend_of(device_).release(device_.index(), memory, bytes);
                stats_.reserved -= bytes;
            }
            blocks.clear();
        }
    }

    std::size_t free_memory() const { return backend_of(device_).info(device_.index()).free_memory.value_or(0); }

    [[noreturn]] void throw_out_of_memory(std::size_t asked, std::size_t free) const {
        std::vector<std::pair<std::size_t, std::string>> holders;
        for (const auto& [tag, bytes] : held_)
            if (bytes > 0) holders.emplace_back(bytes, tag);
        std::sort(holders.rbegin(), holders.rend());
        std::string text;
        for (const auto& [bytes, tag] : holders) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", bytes, tag);
        throw OutOfMemory(fmt::format(
            "out of memory on {}: asked for {} bytes, {} free{}; held: {}; use a smaller batch or more devices",
            device_.str(), asked, free, stats_.limit ? fmt::format(" of a limit of {}", stats_.limit) : std::string(),
            text.empty() ? "nothing" : text));
    }

    Device device_;
    std::mutex mutex_;
    MemoryStats stats_;
    std::map<Stream*, std::multimap<std::size_t, void*>> free_;
    std::unordered_map<void*, Block> blocks_;
    std::map<std::string, std::size_t> held_;
};

struct Pools {
    std::mutex mutex;
    std::map<Device, std::unique_ptr<Pool>> of;

    void lock() {
        mutex.lock();
        for (auto& [device, pool] : of)
            if (pool) pool->mutex().lock();
    }
    void unlock() {
        for (auto& [device, pool] : of)
            if (pool) pool->mutex().unlock();
        mutex.unlock();
    }
};
Pools& pools() {
    static auto* all = [] {
        // Workers lock pools: no child begins with one that is locked by a thread which it has not.
        const auto unlock = [] { pools().unlock(); };
        pthread_atfork([] { pools().lock(); }, unlock, unlock);
        return new Pools;  // outlives every buffer
    }();
    return *all;
}

Pool& pool_of(Device device) {
    const std::scoped_lock lock(pools().mutex);
    auto& pool = pools().of[device];
    if (!pool) {
        require_visible(device);
        pool = std::make_unique<Pool>(device);
    }
    return *pool;
}

}  // namespace

void* take_memory(Stream& home, std::size_t bytes, std::string_view tag) {
    return pool_of(home.device()).take(home, bytes, tag);
}

void put_back_memory(Stream& home, void* memory) { pool_of(home.device()).put_back(home, memory); }

MemoryStats memory_stats(Device device) { return pool_of(device).stats(); }
void reset_peak_memory(Device device) { pool_of(device).reset_peak(); }
void set_memory_limit(Device device, std::size_t bytes) { pool_of(device).set_limit(bytes); }
void release_cached_memory(Device device) { pool_of(device).release_cached(); }

}  // namespace lockstep
