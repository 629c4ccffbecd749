// Internals of the stand-in: devices, streams, events, memory, and the execution of an API call.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>
#include <semaphore.h>

#include <any>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>

#include "lockstep/tests/cuda_standin/standin.h"

namespace standin {

/// A point in a stream's work; done when the worker has reached it.
class Marker {
public:
    void complete();
    void wait();
    bool done() const { return done_.load(std::memory_order_acquire); }
    std::chrono::steady_clock::time_point time() const { return time_; }  // once done

private:
    std::atomic<bool> done_{false};
    std::chrono::steady_clock::time_point time_;
    std::mutex mutex_;
    std::condition_variable completed_;
};
using MarkerPtr = std::shared_ptr<Marker>;

/// An in-order queue with its own worker thread. Workers share no lock with each other or with API calls, and the queue
/// only orders the host before the worker: a thread sanitizer sees races between streams that events should order.
class Stream {
public:
    Stream(int device, unsigned flags, int priority, std::uint64_t serial);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    int device() const { return device_; }
    bool blocking() const { return (flags_ & cudaStreamNonBlocking) == 0; }
    unsigned flags() const { return flags_; }
    int priority() const { return priority_; }

    /// Discarded if the context is poisoned, unless `always`.
    void enqueue(std::function<void()> task, bool always = false, bool counts_itself = false);
    MarkerPtr enqueue_marker();
    void enqueue_wait(const MarkerPtr& marker);
    bool idle() const { return unfinished() == 0; }
    std::uint64_t unfinished() const { return enqueued_ - finished_.load(std::memory_order_acquire); }
    /// Enqueues the worker's last task; `self` keeps the stream alive until then.
    static MarkerPtr finish(const std::shared_ptr<Stream>& self);

private:
    struct Task {
        std::function<void()> body;
        bool always = false;
        bool counts_itself = false;  ///< adds itself to finished_
        std::atomic<Task*> next{nullptr};
    };
    void work();
    void delay();

    int device_;
    unsigned flags_;
    int priority_;
    std::mt19937_64 random_;
    std::uint64_t delay_epoch_ = 0;
    std::uint64_t serial_;
    std::uint64_t enqueued_ = 0;
    std::atomic<std::uint64_t> finished_{0};
    sem_t available_;
    Task* head_;  // worker's side: the task before the next one
    Task* tail_;  // host's side
    std::shared_ptr<Stream> self_;
};

struct Event {
    int device;
    unsigned flags;
    MarkerPtr recorded;  // empty before the first record
};

enum class MemoryType { device, pinned, registered };

struct Block {
    std::size_t bytes;
    MemoryType type;
    int device;  // its owner, or the device current at its allocation
    bool pool;   // from cudaMallocAsync: freeing it does not wait
    void* base;
};

/// Freed memory, kept for a while so that late uses read poison rather than new data.
struct Buried {
    void* memory;
    std::size_t bytes;
    std::vector<MarkerPtr> last_uses;
};

/// A rejected call: CUDA's code and the mistake.
struct Refusal {
    cudaError_t code;
    Kind kind;
    std::string message;
};
/// A failure without a mistake of the caller.
struct Failure {
    cudaError_t code;
};

[[noreturn]] void refuse(cudaError_t code, Kind kind, std::string message);

struct Device {
    DeviceConfig config;
    int physical = 0;
    std::shared_ptr<Stream> default_stream;
    std::set<int> peers;  // devices whose memory this device may access
};

/// A connection to other processes, behind an interface that needs no header of NCCL.
struct Communicator {
    Communicator() = default;
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    virtual void abort() = 0;  ///< ends its work at once, running or queued
};

/// All objects of the stand-in. Guarded by `mutex`, which only API calls take.
struct State {
    std::mutex mutex;
    Config config;
    std::vector<Device> devices;
    std::uint64_t epoch = 0;
    std::uint64_t next_handle = 0;
    std::map<std::uintptr_t, std::shared_ptr<Stream>> streams;
    std::vector<std::pair<int, MarkerPtr>> ending;  // ends of destroyed streams that may still work, by device
    std::map<std::uintptr_t, Event> events;
    std::map<std::uintptr_t, std::any> objects;  // library handles and descriptors
    std::map<std::uintptr_t, std::shared_ptr<Communicator>> communicators;
    std::map<std::uintptr_t, Block> blocks;  // by address
    // By device; cleared when blocks or peers change.
    std::map<int, std::shared_ptr<const std::vector<Access>>> memory_of_launches;
    std::map<std::uintptr_t, std::size_t> freed;
    std::deque<Buried> quarantine;
    std::size_t quarantined_bytes = 0;
    Counters counted;
    std::map<int, std::string> contexts;  // by device: the call that created it
    std::set<std::thread::id> threads;
    /// The driver's lock. Every call takes it; calls that hold it while they wait block all others.
    std::shared_mutex driver;
};
/// Configured from the environment on first use.
State& state();
/// Grows with every reset; data of threads from an earlier epoch is invalid.
std::uint64_t current_epoch();
/// Resets delays, injected failures, mistakes and the poisoned context.
void reset_faults(const Config& config);

/// One API call in progress, holding the state's mutex.
class Call {
public:
    Call(const char* name, State& shared) : name_(name), state_(shared), lock_(shared.mutex) {}

    const char* name() const { return name_; }
    State& state() { return state_; }
    int current_device() const;
    void set_current_device(int device);
    /// Creates the device's primary context if it has none.
    void need_context(int device);

    Device& device(int index);
    /// Null is the current device's default stream. Refuses handles that are not live streams.
    std::shared_ptr<Stream> stream(cudaStream_t handle);
    /// The same for enqueuing work: the default stream and blocking streams of a device wait for each other.
    std::shared_ptr<Stream> work_stream(cudaStream_t handle);
    /// The same; also refuses a stream of another device than the current one.
    std::shared_ptr<Stream> launch_stream(cudaStream_t handle);
    Event& event(cudaEvent_t handle);

    /// The block around [data, data + bytes), or null for memory that CUDA does not know. Refuses freed memory and
    /// ranges beyond their block.
    const Block* find(const void* data, std::size_t bytes);
    void allocate(void** data, std::size_t bytes, const Block& kind);
    /// Removes the block that begins at `data`; refuses other addresses and types.
    Block release(void* data, MemoryType type);
    void bury(const Block& block, std::vector<MarkerPtr> last_uses);

    /// Waits with the mutex unlocked, and counts the wait.
    void wait(const MarkerPtr& marker);
    /// The same, even if the context is lost meanwhile.
    void wait_to_the_end(const MarkerPtr& marker);
    /// Waits with the mutex unlocked until the stream accepts another task.
    void wait_for_room(const std::shared_ptr<Stream>& target);
    /// Marks the end of all work of a device.
    std::vector<MarkerPtr> mark_device(int device_index);

    /// Enqueues a kernel after checking its accesses.
    void launch(const std::shared_ptr<Stream>& target, const std::string& kernel, std::function<void()> body,
                const std::vector<Access>& accesses);
    void check_accesses(int device_index, const std::string& kernel, const std::vector<Access>& accesses);
    /// Counts a convolution or matrix product in DeviceCounters::arithmetic.
    void count_arithmetic(const char* dtype, const char* math);

    template <class Handle, class T>
    Handle create(T object) {
        const std::uintptr_t id = new_handle();
        state_.objects.emplace(id, std::move(object));
        return reinterpret_cast<Handle>(id);
    }
    /// The library object that a handle names; refuses handles that were destroyed or are of another type.
    template <class T, class Handle>
    T& object(Handle handle) {
        const auto found = state_.objects.find(reinterpret_cast<std::uintptr_t>(handle));
        T* value = found == state_.objects.end() ? nullptr : std::any_cast<T>(&found->second);
        if (value == nullptr) refuse(cudaErrorInvalidResourceHandle, Kind::destroyed_handle, "no such handle");
        return *value;
    }
    template <class T, class Handle>
    void destroy(Handle handle) {
        object<T>(handle);
        state_.objects.erase(reinterpret_cast<std::uintptr_t>(handle));
    }
    std::uintptr_t new_handle();

private:
    const char* name_;
    State& state_;
    std::unique_lock<std::mutex> lock_;
};

/// The result of a call that ends before its body runs: `code` is the runtime's or, if `injected`, the test's.
struct Early {
    bool injected;
    int code;
};
/// Checks before every call: threads, callbacks, ignored errors, injected failures, a poisoned context.
std::optional<Early> enter(const char* name, bool library);
/// Whether a runtime call needs a context on the current device.
bool needs_context(std::string_view name);
/// Held by a call that keeps the driver's lock while it waits.
class DriverLock {
public:
    DriverLock();
    ~DriverLock();
    DriverLock(const DriverLock&) = delete;
    DriverLock& operator=(const DriverLock&) = delete;

private:
    std::unique_lock<std::shared_mutex> lock_;
};
int leave_failed(const char* name, const Refusal& refusal);
int leave_failed(const char* name, const Failure& failure);
/// Returns a library's status; the caller must query its description (or call cudaGetLastError) before the next call.
int leave_library(const char* name, int status);
void error_fetched();
cudaError_t last_error(bool clear);
/// cudaErrorNotReady: not an error, but cudaGetLastError returns it next.
cudaError_t not_ready();
void record_mistake(Kind kind, std::string message);
/// The failure of a poisoned context, or success.
cudaError_t sticky_error();
void set_sticky_error(cudaError_t code);
/// Counts a launch for inject_fault; returns the fault that it must raise, or success.
cudaError_t fault_of_launch(const std::string& kernel);
/// The present delays: seed, longest delay, and a number that grows with every change.
struct Delays {
    std::uint64_t seed;
    int max_us;
    std::uint64_t epoch;
};
Delays delays();
/// True on a stream's worker.
bool& on_worker();

template <class Body>
cudaError_t runtime_call(const char* name, Body&& body) {
    if (const auto early = enter(name, false)) return static_cast<cudaError_t>(early->code);
    try {
        Call call(name, state());
        if (needs_context(name)) call.need_context(call.current_device());
        body(call);
        return cudaSuccess;
    } catch (const Refusal& refusal) {
        return static_cast<cudaError_t>(leave_failed(name, refusal));
    } catch (const Failure& failure) {
        return static_cast<cudaError_t>(leave_failed(name, failure));
    }
}

cudnnStatus_t cudnn_status(cudaError_t code);
cublasStatus_t cublas_status(cudaError_t code);

/// The same for library calls; `translate` converts the runtime's codes to theirs.
template <class Status, class Body>
Status library_call(const char* name, Status (*translate)(cudaError_t), Body&& body) {
    if (const auto early = enter(name, true))
        return early->injected ? static_cast<Status>(early->code) : translate(static_cast<cudaError_t>(early->code));
    try {
        Call call(name, state());
        body(call);
        return static_cast<Status>(0);
    } catch (const Refusal& refusal) {
        record_mistake(refusal.kind, std::string(name) + ": " + refusal.message);
        return static_cast<Status>(leave_library(name, translate(refusal.code)));
    } catch (const Failure& failure) {
        return static_cast<Status>(leave_library(name, translate(failure.code)));
    }
}

template <class Body>
cudnnStatus_t cudnn_call(const char* name, Body&& body) {
    return library_call<cudnnStatus_t>(name, cudnn_status, std::forward<Body>(body));
}
template <class Body>
cublasStatus_t cublas_call(const char* name, Body&& body) {
    return library_call<cublasStatus_t>(name, cublas_status, std::forward<Body>(body));
}

}  // namespace standin
