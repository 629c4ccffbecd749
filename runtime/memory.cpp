#include "lockstep/runtime/memory.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/cpu/serial_mode.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/round_up.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// More memory than any machine has: sizes up to this limit can be rounded and added without overflow.
constexpr std::size_t largest_block = std::size_t{1} << 60;

/// Block sizes are rounded up to an eighth of a power of two, so that a freed block fits the next similar request.
std::size_t rounded(std::size_t bytes) {
    if (bytes <= 512) return 512;
    const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes - 1) / 8, 512);
    return round_up(bytes, step);
}

/// Cached memory of one device. Freed blocks return to their home stream and are reused in its order. The lock protects
/// only the bookkeeping: system allocations and waits for streams happen without it. Once all sizes have been seen,
/// taking and returning blocks allocates nothing.
class Pool {
public:
    explicit Pool(Device device) : device_(device) {}

    void* take(Stream& home, std::size_t bytes, std::string_view tag) {
        if (bytes > largest_block) throw_out_of_memory(bytes, free_memory());
        const std::size_t size = rounded(bytes);
        void* memory = reserve(home, bytes, size);
        const bool grows = memory == nullptr;
        if (grows) {
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
        if (grows)
            log_message(LogLevel::debug, [&] {
                return fmt::format("{}: allocated {} bytes for '{}', now {} in all", device_.str(), size, tag,
                                   stats().reserved);
            });
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

    /// Returns cached memory to the system, a stream's blocks after the stream is idle. Blocks that are freed meanwhile
    /// remain cached.
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
            } catch (...) {  // from failed work: its memory remains cached
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
        Tag* tag;  ///< tag of the last use
    };
    using Free = std::map<std::size_t, std::vector<void*>>;

    /// Counts `size` bytes as in use, and takes a cached block for them if there is one; otherwise null.
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

    /// A new block of `size` bytes, which are already counted as in use.
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

    /// With the lock. There are few tags, and a block usually has the same one as the block before.
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
        // Workers lock pools: a child must not start with a pool locked by a thread that does not exist there.
        const auto unlock = [] { pools().unlock(); };
        pthread_atfork([] { pools().lock(); }, unlock, unlock);
        return new Pools;  // outlives every buffer
    }();
    return *all;
}

Pool& pool_of(Device device) {
    constexpr std::size_t max_devices = 65;
    static auto* firsts = new std::array<std::array<std::atomic<Pool*>, max_devices>, 2>{};
    const auto number = static_cast<std::size_t>(device.index() + 1);
    auto* first = number < max_devices ? &(*firsts)[static_cast<std::size_t>(device.kind())][number] : nullptr;
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

MemoryStats memory_stats(Device device) { return pool_of(device).stats(); }
void reset_peak_memory(Device device) { pool_of(device).reset_peak(); }
void set_memory_limit(Device device, std::size_t bytes) { pool_of(device).set_limit(bytes); }
void release_cached_memory(Device device) { pool_of(device).release_cached(); }

std::shared_ptr<Buffer> Buffer::allocate(Stream& home, std::size_t bytes, std::string_view tag) {
    auto buffer = recycled::make_shared<Buffer>(Private());
    buffer->device_ = home.device();
    buffer->home_ = &home;
    buffer->data_ = pool_of(home.device()).take(home, std::max<std::size_t>(bytes, 1), tag);
    buffer->bytes_ = bytes;
    buffer->fork_generation_ = forked::generation();
    return buffer;
}

std::shared_ptr<Buffer> Buffer::zeroed(Device device, std::size_t bytes, std::string_view tag) {
    Stream& stream = Stream::of(device);
    auto buffer = allocate(stream, bytes, tag);
    stream.fill(buffer->data(), 0, bytes);
    stream.synchronize();
    return buffer;
}

std::shared_ptr<Buffer> Buffer::allocate_pinned(std::size_t bytes) {
    auto buffer = recycled::make_shared<Buffer>(Private());
    buffer->home_ = &Stream::of(Device::host());
    buffer->pinned_by_ = cuda_in_use() ? &cuda_backend() : &cpu_backend();
    buffer->bytes_ = bytes;
    buffer->fork_generation_ = forked::generation();
    buffer->data_ = buffer->pinned_by_->allocate_pinned(std::max<std::size_t>(bytes, 1));
    if (!buffer->data_) throw OutOfMemory(fmt::format("out of pinned host memory: {} bytes requested", bytes));
    return buffer;
}

std::shared_ptr<Buffer> Buffer::external(Stream& home, void* data, std::size_t bytes, std::shared_ptr<void> owner) {
    auto buffer = recycled::make_shared<Buffer>(Private());
    buffer->device_ = home.device();
    buffer->home_ = &home;
    buffer->data_ = data;
    buffer->bytes_ = bytes;
    buffer->owner_ = std::move(owner);
    buffer->external_ = true;
    buffer->fork_generation_ = forked::generation();
    return buffer;
}

std::shared_ptr<Buffer> Buffer::symbolic(Trace& trace, int id, std::size_t bytes) {
    auto buffer = recycled::make_shared<Buffer>(Private());
    buffer->trace_ = trace.number();
    buffer->device_ = trace.prototype();
    buffer->trace_id_ = id;
    buffer->bytes_ = bytes;
    return buffer;
}

bool Buffer::belongs_to(const Trace& trace) const { return trace_ == trace.number(); }

std::shared_ptr<Buffer> Buffer::part(std::shared_ptr<Buffer> whole, std::size_t offset, std::size_t bytes) {
    if (!whole) throw InvalidArgument("part of a buffer: the buffer is null; expected an allocated one");
    if (offset > whole->bytes_ || bytes > whole->bytes_ - offset)
        throw InvalidArgument(
            fmt::format("part of a buffer: {} bytes from byte {} of {}; expected a range within the buffer", bytes,
                        offset, whole->bytes_));
    auto buffer = recycled::make_shared<Buffer>(Private());
    buffer->device_ = whole->device_;
    buffer->home_ = whole->home_;
    buffer->data_ = static_cast<char*>(whole->data()) + offset;
    buffer->bytes_ = bytes;
    buffer->offset_ = offset;
    buffer->pinned_by_ = whole->pinned_by_;
    buffer->whole_ = std::move(whole);
    return buffer;
}

Buffer::~Buffer() {
    if (whole_ || trace_ || !data_) return;
    if (fork_generation_ != forked::generation()) return;  // it belongs to the parent, whose streams do not run here
    if (pinned_by_ || external_) {
        try {
            for (Stream* stream : others_) stream->synchronize();
            if (external_) home_->synchronize();
        } catch (...) {  // the next synchronization of the stream reports the failure
        }
        if (pinned_by_) pinned_by_->release_pinned(data_, bytes_);
        return;
    }
    try {
        for (Stream* stream : others_) home_->wait(*stream);
        pool_of(home_->device()).put_back(*home_, data_);
    } catch (...) {  // a destructor must not throw; the block is lost to the pool
    }
}

void* Buffer::data() const {
    if (trace_) throw_without_value("");
    return data_;
}

void Buffer::used_on(Stream& stream) {
    if (whole_) {
        whole_->used_on(stream);
    } else if (&stream != home_ && std::find(others_.begin(), others_.end(), &stream) == others_.end()) {
        others_.push_back(&stream);
    }
}

}  // namespace lockstep
