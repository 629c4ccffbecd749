#include "lockstep/runtime/internal/memory_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

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

/// Cached memory of one device. Blocks go back to the stream they came from and are reused in its order. The lock is
/// held for the books alone: the system is asked for memory, and streams are waited for, without it. Once its sizes
/// have been seen, taking and putting back allocates nothing.
class Pool {
public:
    explicit Pool(Device device) : device_(device) {}

    void* take(Stream& home, std::size_t bytes, std::string_view tag) {
        if (bytes > largest_block) throw_out_of_memory(bytes, free_memory());
        const std::size_t size = rounded(bytes);
        void* memory = reserve(home, bytes, size);
        if (!memory) {
            memory = from_system(bytes, size);
            const std::scoped_lock lock(mutex_);
            try {
                blocks_.emplace(memory, Block{size, nullptr});
            } catch (...) {
                stats_.current -= size;
                backend_of(device_).release(device_.index(), memory, size);
                throw;
            }
            stats_.reserved += size;
        }
        {
            const std::scoped_lock lock(mutex_);
            Tag& known = tag_of(tag);
            known.bytes += size;
            blocks_.find(memory)->second.tag = &known;
        }
        if (!device_.is_host()) live_memory::add(memory, size);
        if (order_check::enabled()) order_check::name_memory(memory, size, fmt::format("{} of {}", tag, device_.str()));
        return memory;
    }

    void put_back(Stream& home, void* memory) {
        if (!device_.is_host()) live_memory::remove(memory);
        const std::scoped_lock lock(mutex_);
        Block& block = blocks_.find(memory)->second;
        stats_.current -= block.bytes;
        block.tag->bytes -= block.bytes;
        free_[&home][block.bytes].push_back(memory);
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

    /// Gives what is cached back to the system, a stream's blocks after the stream has come to rest. Work may put
    /// blocks back meanwhile; those stay.
    void release_cached() {
        std::vector<Stream*> streams;
        {
            const std::scoped_lock lock(mutex_);
            for (const auto& [stream, sizes] : free_) streams.push_back(stream);
        }
        for (Stream* stream : streams) {
            Free taken;
            {
                const std::scoped_lock lock(mutex_);
                taken.swap(free_[stream]);
            }
            try {
                if (!taken.empty()) stream->synchronize();
            } catch (...) {  // of work that failed: its memory stays cached
                const std::scoped_lock lock(mutex_);
                for (auto& [bytes, memories] : taken) {
                    auto& list = free_[stream][bytes];
                    list.insert(list.end(), memories.begin(), memories.end());
                }
                throw;
            }
            for (const auto& [bytes, memories] : taken)
                for (void* memory : memories) {
                    {
                        const std::scoped_lock lock(mutex_);
                        blocks_.erase(memory);
                        stats_.reserved -= bytes;
                    }
                    backend_of(device_).release(device_.index(), memory, bytes);
                }
        }
    }
    std::mutex& mutex() { return mutex_; }

private:
    struct Tag {
        std::string name;
        std::size_t bytes = 0;  ///< in use
    };
    struct Block {
        std::size_t bytes;
        Tag* tag;  ///< of the last use
    };
    using Free = std::map<std::size_t, std::vector<void*>>;

    /// Counts `size` bytes as in use, and takes a cached block for them where there is one; else null.
    void* reserve(Stream& home, std::size_t bytes, std::size_t size) {
        std::size_t free = 0;
        {
            const std::scoped_lock lock(mutex_);
            if (stats_.limit == 0 || stats_.current + size <= stats_.limit) {
                void* memory = nullptr;
                Free& sizes = free_[&home];
                if (const auto found = sizes.find(size); found != sizes.end() && !found->second.empty()) {
                    memory = found->second.back();
                    found->second.pop_back();
                }
                stats_.current += size;
                stats_.peak = std::max(stats_.peak, stats_.current);
                return memory;
            }
            free = stats_.limit - std::min(stats_.limit, stats_.current);
        }
        throw_out_of_memory(bytes, free);
    }

    /// A new block of `size` bytes, which are counted as in use already.
    void* from_system(std::size_t bytes, std::size_t size) {
        void* memory = nullptr;
        try {
            memory = backend_of(device_).allocate(device_.index(), size);
            if (!memory) {
                release_cached();
                memory = backend_of(device_).allocate(device_.index(), size);
            }
        } catch (...) {
            unreserve(size);
            throw;
        }
        if (memory) return memory;
        unreserve(size);
        throw_out_of_memory(bytes, free_memory());
    }
    void unreserve(std::size_t size) {
        const std::scoped_lock lock(mutex_);
        stats_.current -= size;
    }

    /// With the lock. There are a few tags, and a block's is mostly that of the block before.
    Tag& tag_of(std::string_view name) {
        if (last_tag_ && last_tag_->name == name) return *last_tag_;
        const auto found = std::find_if(tags_.begin(), tags_.end(), [&](const Tag& tag) { return tag.name == name; });
        last_tag_ = found == tags_.end() ? &tags_.emplace_back(Tag{std::string(name)}) : &*found;
        return *last_tag_;
    }

    std::size_t free_memory() const { return backend_of(device_).info(device_.index()).free_memory.value_or(0); }

    [[noreturn]] void throw_out_of_memory(std::size_t asked, std::size_t free) {
        std::vector<std::pair<std::size_t, std::string>> holders;
        std::size_t limit = 0;
        {
            const std::scoped_lock lock(mutex_);
            for (const Tag& tag : tags_)
                if (tag.bytes > 0) holders.emplace_back(tag.bytes, tag.name);
            limit = stats_.limit;
        }
        std::sort(holders.rbegin(), holders.rend());
        std::string text;
        for (const auto& [bytes, tag] : holders) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", bytes, tag);
        throw OutOfMemory(fmt::format(
            "out of memory on {}: {} bytes requested, {} free{}; held: {}; expected a smaller batch or more devices",
            device_.str(), asked, free, limit ? fmt::format(" of a limit of {}", limit) : std::string(),
            text.empty() ? "nothing" : text));
    }

    Device device_;
    std::mutex mutex_;
    MemoryStats stats_;
    std::map<Stream*, Free> free_;
    std::unordered_map<void*, Block> blocks_;  ///< in use or cached
    std::deque<Tag> tags_;                     ///< blocks point to them
    Tag* last_tag_ = nullptr;
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
    constexpr std::size_t most_devices = 65;
    static auto* firsts = new std::array<std::array<std::atomic<Pool*>, most_devices>, 2>{};
    const auto number = static_cast<std::size_t>(device.index() + 1);
    auto* first = number < most_devices ? &(*firsts)[static_cast<std::size_t>(device.kind())][number] : nullptr;
    if (first)
        if (Pool* known = first->load(std::memory_order_acquire)) return *known;
    require_visible(device);
    const std::scoped_lock lock(pools().mutex);
    auto& pool = pools().of[device];
    if (!pool) pool = std::make_unique<Pool>(device);
    if (first) first->store(pool.get(), std::memory_order_release);
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
