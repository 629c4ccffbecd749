// Device memory: cached, freed in stream order, counted per device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

class Backend;
class Trace;

/// Memory that Lockstep uses on a device.
struct MemoryStats {
    std::size_t current = 0;   ///< bytes in use now
    std::size_t peak = 0;      ///< most bytes in use since `reset_peak_memory`
    std::size_t reserved = 0;  ///< bytes held from the system, in use or cached
    std::size_t limit = 0;     ///< 0: no limit
};

/// Statistics of `device`. reset_peak_memory sets their peak to the bytes in use now.
MemoryStats memory_stats(Device device);
void reset_peak_memory(Device device);
/// Limits the bytes in use to `bytes` from now on (0 removes the limit); allocations beyond it throw OutOfMemory.
void set_memory_limit(Device device, std::size_t bytes);
/// Returns cached blocks to the system.
void release_cached_memory(Device device);

/// A range of device memory, or a buffer of a trace without memory yet. Shared: the last owner frees it, in the order
/// of its home stream, after the work of all streams that were passed to `used_on`.
class Buffer {
    struct Private {};

public:
    explicit Buffer(Private) {}  ///< the functions below create buffers
    /// Allocates `bytes` bytes (aligned to 256) for use on `home`; `tag` names them in OutOfMemory messages, which
    /// state the device, the requested and the free bytes, and what holds the rest. Contents are undefined.
    static std::shared_ptr<Buffer> allocate(Stream& home, std::size_t bytes, std::string_view tag);
    /// As `allocate`, filled with zeros and for use on any stream of the device; blocks until the zeros are written.
    static std::shared_ptr<Buffer> zeroed(Device device, std::size_t bytes, std::string_view tag);
    /// Host memory that devices copy from and to without staging: pinned if this process has used a GPU.
    static std::shared_ptr<Buffer> allocate_pinned(std::size_t bytes);
    /// Memory of others, which is not counted as this device's. `owner` keeps it; null: someone else does. The last
    /// owner of the buffer waits until `home` and the streams passed to `used_on` are idle, and then releases `owner`.
    static std::shared_ptr<Buffer> external(Stream& home, void* data, std::size_t bytes, std::shared_ptr<void> owner);
    /// A buffer of `trace` with `bytes` bytes, on its prototype device.
    static std::shared_ptr<Buffer> symbolic(Trace& trace, int id, std::size_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    /// A part of `whole` that keeps it alive.
    static std::shared_ptr<Buffer> part(std::shared_ptr<Buffer> whole, std::size_t offset, std::size_t bytes);

    Device device() const { return device_; }
    std::size_t bytes() const { return bytes_; }
    bool is_symbolic() const { return trace_ != 0; }
    bool is_pinned() const { return pinned_by_ != nullptr; }
    /// First byte. Throws InvalidArgument for a buffer of a trace: its value does not exist while `forward` is traced.
    void* data() const;
    /// Whether this buffer belongs to `trace`.
    bool belongs_to(const Trace& trace) const;
    /// Number of a symbolic buffer in its trace.
    int trace_id() const { return trace_id_; }
    /// Buffer that this one is a part of, or null; `offset_in_whole` is in bytes.
    const std::shared_ptr<Buffer>& whole() const { return whole_; }
    std::size_t offset_in_whole() const { return offset_; }
    Stream& home() const { return *home_; }
    /// Declares that work on `stream` reads or writes this buffer: it is not reused before that work is done.
    void used_on(Stream& stream);

private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    Device device_;
    Stream* home_ = nullptr;
    std::shared_ptr<Buffer> whole_;
    std::size_t offset_ = 0;
    std::uint64_t trace_ = 0;  // number of the trace, which the buffer may outlive
    int trace_id_ = -1;
    Backend* pinned_by_ = nullptr;
    std::shared_ptr<void> owner_;  // keeps external memory
    bool external_ = false;
    int fork_generation_ = 0;  // see forked::generation
    std::vector<Stream*> others_;
};

}  // namespace lockstep
