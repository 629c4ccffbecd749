#include "lockstep/runtime/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <unordered_map>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/forked.h"
#include "lockstep/runtime/internal/live_memory.h"
#include "lockstep/runtime/internal/operand.h"
#include "lockstep/runtime/internal/pool_locks.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/runtime/trace.h"

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
};
Pools& pools() {
    static auto* all = new Pools;  // outlives every buffer
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

void lock_pools() {
    pools().mutex.lock();
    for (auto& [device, pool] : pools().of)
        if (pool) pool->mutex().lock();
}

void unlock_pools() {
    for (auto& [device, pool] : pools().of)
        if (pool) pool->mutex().unlock();
    pools().mutex.unlock();
}

MemoryStats memory_stats(Device device) { return pool_of(device).stats(); }
void reset_peak_memory(Device device) { pool_of(device).reset_peak(); }
void set_memory_limit(Device device, std::size_t bytes) { pool_of(device).set_limit(bytes); }
void release_cached_memory(Device device) { pool_of(device).release_cached(); }

std::shared_ptr<Buffer> Buffer::allocate(Stream& home, std::size_t bytes, std::string_view tag) {
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->device_ = home.device();
    buffer->home_ = &home;
    buffer->data_ = pool_of(home.device()).take(home, std::max<std::size_t>(bytes, 1), tag);
    buffer->bytes_ = bytes;
    buffer->made_in_ = forked::generation();
    return buffer;
}

std::shared_ptr<Buffer> Buffer::allocate_pinned(std::size_t bytes) {
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->home_ = &Stream::of(Device::host());
    buffer->pinned_by_ = cuda_backend().in_use() ? &cuda_backend() : &cpu_backend();
    buffer->bytes_ = bytes;
    buffer->made_in_ = forked::generation();
    buffer->data_ = buffer->pinned_by_->allocate_pinned(std::max<std::size_t>(bytes, 1));
    if (!buffer->data_) throw OutOfMemory(fmt::format("out of pinned host memory: asked for {} bytes", bytes));
    return buffer;
}

std::shared_ptr<Buffer> Buffer::symbolic(Trace& trace, int id, std::size_t bytes) {
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->trace_ = trace.number();
    buffer->device_ = trace.prototype();
    buffer->trace_id_ = id;
    buffer->bytes_ = bytes;
    return buffer;
}

bool Buffer::belongs_to(const Trace& trace) const { return trace_ == trace.number(); }

std::shared_ptr<Buffer> Buffer::part(std::shared_ptr<Buffer> whole, std::size_t offset, std::size_t bytes) {
    if (!whole) throw InvalidArgument("part of a buffer: there is no buffer; allocate it first");
    if (offset > whole->bytes_ || bytes > whole->bytes_ - offset)
        throw InvalidArgument(fmt::format("part of a buffer: {} bytes from byte {} of {}; give a range inside", bytes,
                                          offset, whole->bytes_));
    std::shared_ptr<Buffer> buffer(new Buffer);
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
    if (made_in_ != forked::generation()) return;  // the parent's: its streams don't run here
    if (pinned_by_) {
        try {
            for (Stream* stream : others_) stream->synchronize();
        } catch (...) {  // the failure is reported where the stream is synchronised next
        }
        pinned_by_->release_pinned(data_, bytes_);
        return;
    }
    try {
        for (Stream* stream : others_) home_->wait(*stream);
        pool_of(device_).put_back(*home_, data_);
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
