// Interface of a kind of device. One implementation per kind (runtime/cpu, runtime/cuda); code outside this interface
// does not know which one it uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

/// Backend side of an Event; see Event for the contract.
class EventImpl {
public:
    virtual ~EventImpl() = default;
    virtual bool done() const = 0;
    virtual void synchronize() const = 0;
    /// Milliseconds since `from` was reached; both have been reached.
    virtual double elapsed_ms_since(const EventImpl& from) const = 0;
    virtual bool recorded() const = 0;
};

/// Backend side of a Stream; see Stream for the contract.
class StreamImpl {
public:
    virtual ~StreamImpl() = default;
    virtual void run(Work work, int threads) = 0;
    virtual bool runs_at_once() const = 0;
    virtual void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) = 0;
    virtual void copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                         Device from_device, std::size_t row_bytes, std::size_t rows) = 0;
    virtual void fill(void* to, std::uint8_t value, std::size_t bytes) = 0;
    virtual void callback(std::function<void()> function) = 0;
    virtual void record(EventImpl& event) = 0;
    /// `event` may belong to another device of the same kind, or of another kind (then the host waits).
    virtual void wait(const EventImpl& event) = 0;
    virtual void synchronize() = 0;
    virtual bool idle() const = 0;
};

class Backend {
public:
    virtual ~Backend() = default;
    virtual int device_count() = 0;
    virtual DeviceInfo info(int index) = 0;
    /// Devices with the same number run the same kernels: a choice made for one is valid for the others.
    virtual std::uint64_t hardware(int index) = 0;
    virtual bool peer_access(int reader, int owner) = 0;
    virtual bool host_access() = 0;
    /// Whether this process uses one of its devices, that is, has created a stream or an event.
    virtual bool in_use() = 0;
    virtual std::unique_ptr<StreamImpl> make_stream(int index, StreamRole role) = 0;
    virtual std::unique_ptr<EventImpl> make_event(int index, bool timed) = 0;
    /// Memory of the device, aligned to at least 256 bytes; null if out of memory.
    virtual void* allocate(int index, std::size_t bytes) = 0;
    virtual void release(int index, void* memory, std::size_t bytes) noexcept = 0;
    /// Host memory for copies from and to the devices; at least one of them is in use.
    virtual void* allocate_pinned(std::size_t bytes) = 0;
    virtual void release_pinned(void* memory, std::size_t bytes) noexcept = 0;
    /// Reason why there is no device; empty if there are some.
    virtual std::string absence_reason() = 0;
};

Backend& cpu_backend();
/// The CUDA backend, or one without devices that knows the reason. Loads the backend on the first call.
Backend& cuda_backend();
/// Whether this process uses a CUDA device. Does not load the backend.
bool cuda_in_use();
inline Backend& backend_of(Device device) { return device.kind() == DeviceKind::cuda ? cuda_backend() : cpu_backend(); }

using LibraryVersions = std::vector<std::pair<std::string, std::string>>;

// The CUDA backend in runtime/cuda and ops/cuda. Builds without the toolkit have other functions with these names,
// which give the reason; those of shared builds load the library that has these.
extern "C" {
/// Null, and the reason in `absence`, if the backend is absent.
Backend* lockstep_cuda_backend(std::string& absence);
/// Appends the versions of CUDA's libraries.
void lockstep_cuda_versions(LibraryVersions& versions);
}

}  // namespace lockstep
