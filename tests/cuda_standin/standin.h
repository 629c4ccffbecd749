// Control of the CUDA stand-in: a CUDA runtime, cuDNN, cuBLASLt and NCCL with N pretend devices, made of host memory
// and one worker thread per stream, for running the CUDA host code where there is no GPU. It executes copies, events
// and library calls for real, answers what CUDA refuses with CUDA's error code and keeps a Mistake for it.
//
// How to add a call: write the C function in the file of its topic as `return runtime_call("name", [&](Call& call)
// {…})`, look handles and memory up through state.h, and give its mistakes a test case.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace standin {

enum class Driver { present, absent, too_old };

struct DeviceConfig {
    std::size_t memory = std::size_t{8} << 30;  // bytes; an allocation beyond it is cudaErrorMemoryAllocation
    int sm_count = 108;
    int compute_capability = 80;
};

struct Config {
    // Physical devices; CUDA_VISIBLE_DEVICES chooses among them as the driver does.
    std::vector<DeviceConfig> devices = std::vector<DeviceConfig>(2);
    Driver driver = Driver::present;
    bool peer_access = true;
    std::uint64_t delay_seed = 0;
    int max_delay_us = 0;             // every task of every stream first sleeps a random 0..max_delay_us
    std::size_t launch_queue = 1024;  // tasks of one stream that are not done yet: who enqueues one more waits
};

/// The configuration a process starts with: LOCKSTEP_STANDIN_DEVICES (default 2), LOCKSTEP_STANDIN_PEER_ACCESS (0 or
/// 1), LOCKSTEP_STANDIN_LAUNCH_QUEUE, LOCKSTEP_STANDIN_DELAY_US and LOCKSTEP_STANDIN_DELAY_SEED. Throws
/// std::invalid_argument on malformed values.
Config config_from_environment();

/// Waits for all work, forgets every stream, event, allocation, handle, counter and mistake, and starts anew. The
/// current device of every thread becomes 0.
void reset(const Config& config = config_from_environment());

enum class Kind {
    wrong_device,        // a stream, event or handle used under another current device, or with another device's object
    no_peer_access,      // a kernel touches another device's memory that was not opened to it
    host_memory,         // a kernel touches host memory that is not pinned
    event_not_recorded,  // waited for, queried or timed before any record: the wait does nothing
    use_after_free,
    double_free,
    destroyed_handle,  // a stream, event, handle or descriptor that was destroyed, or that never was one
    out_of_bounds,
    ignored_error,  // a call failed and the thread went on without fetching the error
    invalid_argument,
    called_from_callback,  // CUDA called from a host function
    workspace,             // smaller than what was asked for, or missing
    unsupported,           // a combination that the stand-in does not compute
    alignment,             // memory less aligned than the algorithm was chosen for
    concurrent_use,        // a communicator of NCCL's used by two threads at once
};
std::string_view name_of(Kind kind);

struct Mistake {
    Kind kind;
    std::string message;  // the call and what was wrong with it
};

/// Mistakes so far, in order. A process that ends with mistakes nobody took prints them and exits with status 97.
std::vector<Mistake> mistakes();
/// The same, and forgets them: for tests that plant mistakes.
std::vector<Mistake> take_mistakes();

struct DeviceCounters {
    std::map<std::string, std::uint64_t> launches;  // kernels and library calls by name
    std::uint64_t memsets = 0;
    std::uint64_t host_functions = 0;
    std::size_t bytes_in_use = 0;
    std::size_t bytes_peak = 0;
    std::uint64_t live_allocations = 0;
};

struct PairCounters {
    std::uint64_t copies = 0;
    std::uint64_t bytes = 0;
    std::uint64_t staged_copies = 0;  // of those, between devices without peer access
    std::uint64_t kernel_reads = 0;   // declared accesses of kernels that run on the other device
    std::uint64_t kernel_read_bytes = 0;
    std::uint64_t kernel_writes = 0;
    std::uint64_t kernel_write_bytes = 0;
};

inline constexpr int kHost = -1;

struct Counters {
    std::vector<DeviceCounters> devices;
    // (source, destination) of the bytes; kHost is the host. A kernel on 1 that reads memory of 0 is a read of (0, 1).
    std::map<std::pair<int, int>, PairCounters> pairs;
    std::map<std::string, std::uint64_t> calls;       // API calls by name
    std::map<std::string, std::uint64_t> host_waits;  // calls in which the host thread waited for a device, by name
    std::size_t live_streams = 0;
    std::size_t live_events = 0;
    std::size_t live_pinned = 0;   // blocks of cudaMallocHost, cudaHostAlloc and cudaHostRegister
    std::size_t live_handles = 0;  // cuDNN and cuBLASLt handles and descriptors
    std::size_t live_communicators = 0;
};
Counters counters();
/// Zeroes what counts events (launches, copies, calls, waits, peaks); what is alive stays.
void reset_counters();

/// The devices that have a primary context, as CUDA 12 and later make them, each with the call that made it: whatever
/// needs a context makes one on the current device, and cudaSetDevice on the one that it names.
std::map<int, std::string> contexts();

/// Every host thread that called CUDA since reset; the stand-in's own workers are not among them.
std::set<std::thread::id> calling_threads();

/// The `nth` next call (1 is the next one) of `function` returns `status` and does nothing: a cudaError_t for runtime
/// calls, a cudnnStatus_t, cublasStatus_t or ncclResult_t for library calls. `sticky` (runtime calls only) poisons the
/// context: every later call fails too, and queued work no longer runs.
void inject_failure(std::string function, int nth, int status, bool sticky = false);
/// The `nth` next launch of `kernel` (a name in DeviceCounters::launches) poisons the context when it runs, as an
/// illegal address does on a GPU: the launch itself succeeds, later calls return `status`.
void inject_fault(std::string kernel, int nth, cudaError_t status = cudaErrorIllegalAddress);
void set_delays(std::uint64_t seed, int max_delay_us);
void set_memory_limit(int device, std::size_t bytes);

/// Memory that a kernel touches. Ranges of zero bytes are ignored.
struct Access {
    const void* data;
    std::size_t bytes;
    bool write;
};
inline Access reads(const void* data, std::size_t bytes) { return {data, bytes, false}; }
inline Access writes(void* data, std::size_t bytes) { return {data, bytes, true}; }

/// The host twin of a kernel launch: `body` runs on the stream's worker after everything enqueued before it. Refused
/// like a launch: wrong current device, freed or foreign memory, ranges beyond their allocation. Never throws.
cudaError_t enqueue_host_kernel(cudaStream_t stream, std::string name, std::function<void()> body,
                                std::vector<Access> accesses);

}  // namespace standin
