// Streams and events: the order of work on a device and between devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/runtime/device.h"

namespace lockstep {

class EventImpl;
class StreamImpl;

/// Memory that a piece of work reads or writes. Every enqueue declares all of it, for the ordering checker and the
/// ownership check.
struct Access {
    enum class Mode : std::uint8_t { read, write, peer_read };
    const void* address = nullptr;
    std::size_t bytes = 0;
    Device owner;            ///< device that owns the memory
    Mode mode = Mode::read;  ///< peer_read: a declared read of another device's memory
};

/// Argument of a piece of work when it runs.
struct ExecContext {
    Device device;
    void* native = nullptr;  ///< cudaStream_t on CUDA, otherwise null
};

/// On CPU devices the work itself, run by the stream's worker. On CUDA, a function that enqueues on `native` and
/// returns, run at once on the calling thread.
using Work = std::function<void(const ExecContext&)>;

/// A point in a stream. Reusable: a wait refers to the latest record before it.
class Event {
public:
    /// An event for streams of `device`; throws InvalidArgument if that is not visible. `timed` allows elapsed_ms, and
    /// makes records more expensive (enable_timing of torch.cuda.Event).
    explicit Event(Device device, bool timed = false);
    ~Event();
    Event(Event&&) noexcept;
    Event& operator=(Event&&) noexcept;

    /// True if the latest record has been reached, or the event was never recorded.
    bool done() const;
    /// Blocks the host until the latest record has been reached.
    void synchronize() const;
    /// Milliseconds between two reached events. Throws InvalidArgument if one is not timed, was never recorded or has
    /// not been reached.
    static double elapsed_ms(const Event& from, const Event& to);

    Device device() const { return device_; }
    EventImpl& impl() const { return *impl_; }
    std::uint64_t id() const { return id_; }

private:
    Device device_;
    bool timed_;
    std::unique_ptr<EventImpl> impl_;
    std::uint64_t id_;
};

/// Purpose of a stream: kernels, sums between devices, changes that outlive a step, input copies, operations between
/// processes (which may block). Each device has one stream of each role and index; they live as long as the process.
enum class StreamRole : std::uint8_t {
    compute,
    reduce,     ///< sums over shards
    commit,     ///< changes that outlive a step
    input,      ///< copies of batches and tensors to the device
    collective  ///< communication with other processes
};

/// An in-order queue of work on one device.
class Stream {
public:
    /// The stream of this device, role and index; created on first use. Eager tensors use compute 0. Throws
    /// InvalidArgument for a device that is not visible and a negative index.
    static Stream& of(Device device, StreamRole role = StreamRole::compute, int index = 0);

    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Device device() const { return device_; }
    StreamRole role() const { return role_; }
    const std::string& name() const { return name_; }  ///< "cpu:1/compute0"
    int id() const { return id_; }

    /// Enqueues `work` to run with `threads` CPU threads. Throws InvalidArgument if an access belongs to another device
    /// and is not a declared peer read. A Work that throws makes the stream fail: `synchronize` rethrows.
    void run(std::string_view what, std::span<const Access> accesses, Work work, int threads = 1);
    /// Whether `run` calls its Work before it returns, as on the host and on CUDA devices.
    bool runs_at_once() const;
    /// Enqueues a copy. One side must belong to this stream's device or be host memory. Copies from and to GPUs are
    /// enqueued on their streams. Throws InvalidArgument otherwise.
    void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
    /// Enqueues a copy of `rows` rows of `row_bytes` bytes between pitched memories.
    void copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                 Device from_device, std::size_t row_bytes, std::size_t rows);
    /// Sets `bytes` bytes of this device's memory to `value`.
    void fill(void* to, std::uint8_t value, std::size_t bytes);
    /// Runs `function` on a thread of the backend, in stream order; it must not enqueue or wait for a device.
    void callback(std::function<void()> function);

    /// Throws InvalidArgument for an event of another device.
    void record(Event& event);
    /// `event` may belong to any device; a wait for an event that was never recorded is a no-op.
    void wait(const Event& event);
    /// Waits for everything enqueued on `other` so far.
    void wait(Stream& other);

    /// Blocks the host until the stream is empty. If work in it has failed, throws that work's exception once (a
    /// DeviceError if the device failed); work enqueued after it was skipped, later work runs.
    void synchronize();
    bool idle() const;

private:
    Stream(Device device, StreamRole role, int index, int id);
    /// `accesses`: the read and the write; `bytes`: number of bytes copied.
    void account_copy(std::span<Access, 2> accesses, std::size_t bytes);

    Device device_;
    StreamRole role_;
    std::string name_;
    int id_;
    std::unique_ptr<StreamImpl> impl_;
    Event handoff_;  // for wait(Stream&): recorded on this stream
    friend class StreamTable;
};

/// Blocks the host until every stream of every device is empty. Throws the first failure found, or an error that eager
/// calls have found in their data and that has not been thrown yet (see Tensor).
void synchronize_all();

/// While an instance lives, worker threads of CPU streams do not exit once started. The destructor of the last one
/// drains and joins them, except those that get more work meanwhile. Without an instance, a thread exits after one idle
/// second. New work starts it again. Every wrapper holds an instance.
class StreamThreads {
public:
    StreamThreads();
    ~StreamThreads();
    StreamThreads(const StreamThreads&) = delete;
    StreamThreads& operator=(const StreamThreads&) = delete;

private:
    int fork_generation_;  // see forked::generation
};

}  // namespace lockstep
