// Streams and events: how work is ordered on a device and between devices.
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

/// Memory that a piece of work reads or writes. Every enqueue declares all of it: that is what the ordering checker
/// and the ownership check work on.
struct Access {
    enum class Mode : std::uint8_t { read, write, peer_read };
    const void* address = nullptr;
    std::size_t bytes = 0;
    Device owner;            ///< device that the memory belongs to
    Mode mode = Mode::read;  ///< peer_read: a declared read of another device's memory
};

/// What a piece of work is told when it runs.
struct Launch {
    Device device;
    void* native = nullptr;  ///< cudaStream_t on CUDA, otherwise null
};

/// On CPU devices the work itself, run by the stream's worker; on CUDA a function that enqueues on `native` and
/// returns, run at once on the calling thread.
using Work = std::function<void(const Launch&)>;

/// A point in a stream. Reusable: a wait means the latest record before it.
class Event {
public:
    /// To be recorded on streams of `device`; throws InvalidArgument when that is not visible. `timed`: it can be given
    /// to elapsed_ms, which makes records dearer (enable_timing of torch.cuda.Event).
    explicit Event(Device device, bool timed = false);
    ~Event();
    Event(Event&&) noexcept;
    Event& operator=(Event&&) noexcept;

    /// True when the latest record has been reached; true when never recorded.
    bool done() const;
    /// Blocks the host until the latest record has been reached.
    void synchronize() const;
    /// Milliseconds between two reached events. Throws InvalidArgument when one is not timed, was never recorded or not
    /// reached.
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

/// What a stream is for: kernels, sums between devices, changes that outlive a step, arrivals, operations between
/// processes (which may block). Each device has one stream of each role and index; they live as long as the process.
enum class StreamRole : std::uint8_t {
    compute,
    reduce,     ///< sums over shards
    commit,     ///< what outlives a step
    input,      ///< batches and tensors on their way to the device
    collective  ///< what goes to other processes and comes from them
};

/// An in-order queue of work on one device.
class Stream {
public:
    /// The stream of this device, role and index; made on first use. compute 0 is where eager tensors run. Throws
    /// InvalidArgument for a device that is not visible and a negative index.
    static Stream& of(Device device, StreamRole role = StreamRole::compute, int index = 0);

    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Device device() const { return device_; }
    StreamRole role() const { return role_; }
    const std::string& name() const { return name_; }  ///< "cpu:1/compute0"
    int id() const { return id_; }

    /// Enqueues `work` to run with `threads` CPU threads. Throws InvalidArgument when an access belongs to another
    /// device and is no declared peer read. A Work that throws makes the stream fail: `synchronize` rethrows.
    void run(std::string_view what, std::span<const Access> accesses, Work work, int threads = 1);
    /// Enqueues a copy. One side must belong to this stream's device or be host memory.
    void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
    /// Enqueues a copy of `rows` rows of `row_bytes` bytes between pitched memories.
    void copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                 Device from_device, std::size_t row_bytes, std::size_t rows);
    /// Sets `bytes` bytes of this device's memory to `value`.
    void fill(void* to, std::uint8_t value, std::size_t bytes);
    /// Runs `function` on a thread of the backend when the stream gets there; it must not enqueue or wait for a device.
    void callback(std::function<void()> function);

    /// Throws InvalidArgument for an event of another device.
    void record(Event& event);
    /// `event` may belong to any device; one that was never recorded is no wait.
    void wait(const Event& event);
    /// Waits for everything that `other` has been given so far.
    void wait(Stream& other);

    /// Blocks the host until the stream is empty. When work in it has failed, throws once what that work threw (a
    /// DeviceError where the device did); work enqueued after it was skipped, later work runs.
    void synchronize();
    bool idle() const;

private:
    Stream(Device device, StreamRole role, int index, int id);
    /// `accesses`: what is read, what is written; `bytes`: what is moved.
    void account_copy(std::span<Access, 2> accesses, std::size_t bytes);

    Device device_;
    StreamRole role_;
    std::string name_;
    int id_;
    std::unique_ptr<StreamImpl> impl_;
    Event handoff_;  // for wait(Stream&): recorded on this stream
    friend class StreamTable;
};

/// Blocks the host until every stream of every device is empty; throws the first failure found, or what eager calls
/// have found in their data and nobody has been told yet (see Tensor).
void synchronize_all();

/// While one lives, threads that serve the streams of CPU devices stay once they are there. When the last one goes they
/// finish what has been enqueued and end, before its destructor returns, but for those that get more work meanwhile.
/// Without one they end when they have had nothing to do for a second. They come back with new work. Every wrapper
/// holds one.
class StreamThreads {
public:
    StreamThreads();
    ~StreamThreads();
    StreamThreads(const StreamThreads&) = delete;
    StreamThreads& operator=(const StreamThreads&) = delete;

private:
    int made_in_;  // see forked::generation
};

}  // namespace lockstep
