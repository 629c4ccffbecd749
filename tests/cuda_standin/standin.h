// Control of the CUDA stand-in: a CUDA runtime, cuDNN, cuBLASLt and NCCL with N simulated devices, made of host memory
// and one worker thread per stream, for running the CUDA host code without a GPU. It really executes copies, events and
// library calls, answers calls that CUDA rejects with CUDA's error code, and records a Mistake for them.
//
// How to add a call: write the C function in the file of its topic as `return runtime_call("name", [&](Call& call)
// {…})`, look handles and memory up through state.h, and add a test case for its mistakes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
    // Physical devices; CUDA_VISIBLE_DEVICES selects among them as in the driver.
    std::vector<DeviceConfig> devices = std::vector<DeviceConfig>(2);
    Driver driver = Driver::present;
    bool peer_access = true;
    std::uint64_t delay_seed = 0;
    int max_delay_us = 0;             // every task of every stream first sleeps a random 0..max_delay_us
    std::size_t launch_queue = 1024;  // maximum number of unfinished tasks of a stream; further enqueues wait
    bool runs_kernels = true;         // false: kernels and library calls are checked and counted, and do nothing
};

/// The initial configuration of a process: LOCKSTEP_STANDIN_DEVICES (default 2), LOCKSTEP_STANDIN_PEER_ACCESS (0 or 1),
/// LOCKSTEP_STANDIN_LAUNCH_QUEUE, LOCKSTEP_STANDIN_DELAY_US and LOCKSTEP_STANDIN_DELAY_SEED. Throws
/// std::invalid_argument for malformed values.
Config config_from_environment();

/// Waits for all work, discards every stream, event, allocation, handle, counter and mistake, and starts again. The
/// current device of every thread becomes 0.
void reset(const Config& config = config_from_environment());

enum class Kind {
    wrong_device,        // a stream, event or handle used under another current device, or with another device's object
    no_peer_access,      // a kernel accesses another device's memory without peer access
    host_memory,         // a kernel accesses host memory that is not pinned
    event_not_recorded,  // waited for, queried or timed before any record: the wait has no effect
    use_after_free,
    double_free,
    destroyed_handle,  // a stream, event, handle or descriptor that was destroyed or never existed
    out_of_bounds,
    ignored_error,  // a call failed and the thread continued without fetching the error
    invalid_argument,
    called_from_callback,  // CUDA called from a host function
    workspace,             // smaller than required, or missing
    unsupported,           // a combination that the stand-in does not support
    alignment,             // memory less aligned than the algorithm requires
    concurrent_use,        // an NCCL communicator used by two threads at once
    kernel,                // a fault of a compiled kernel, such as a race
};
std::string_view name_of(Kind kind);

struct Mistake {
    Kind kind;
    std::string message;  // the call and its mistake
};

/// Mistakes so far, in order. A process that ends with mistakes that were not taken prints them and exits with status
/// 97.
std::vector<Mistake> mistakes();
/// The same, and clears them: for tests that make mistakes deliberately.
std::vector<Mistake> take_mistakes();

struct DeviceCounters {
    std::map<std::string, std::uint64_t> launches;  // kernels and library calls by name
    // Convolutions and matrix products by call, dtype and requested arithmetic, such as
    // "cudnnConvolutionForward f32 CUDNN_FMA_MATH" and "cublasLtMatmul f32 CUBLAS_COMPUTE_32F".
    std::map<std::string, std::uint64_t> arithmetic;
    std::uint64_t memsets = 0;
    std::uint64_t host_functions = 0;
    std::size_t bytes_in_use = 0;
    std::size_t bytes_peak = 0;
    std::uint64_t live_allocations = 0;
};

struct PairCounters {
    std::uint64_t copies = 0;
    std::uint64_t bytes = 0;
    std::uint64_t staged_copies = 0;  // those between devices without peer access
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
/// Zeroes counters of events (launches, copies, calls, waits, peaks); those of live objects are unchanged.
void reset_counters();

/// The devices that have a primary context, under the rules of CUDA 12 and later, each with the call that created it: a
/// call that needs a context creates one on the current device, and cudaSetDevice on the device that it names.
std::map<int, std::string> contexts();

/// Every host thread that called CUDA since the last reset, without the stand-in's own workers.
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

/// Memory that a kernel accesses. Ranges of zero bytes are ignored.
struct Access {
    const void* data;
    std::size_t bytes;
    bool write;
};
inline Access reads(const void* data, std::size_t bytes) { return {data, bytes, false}; }
inline Access writes(void* data, std::size_t bytes) { return {data, bytes, true}; }

/// The host twin of a kernel launch: `body` runs on the stream's worker after everything enqueued before it. Rejected
/// like a launch: wrong current device, freed or foreign memory, ranges beyond their allocation. Never throws.
cudaError_t enqueue_host_kernel(cudaStream_t stream, std::string name, std::function<void()> body,
                                std::vector<Access> accesses);

/// Names this thread's next launch of a compiled kernel, for DeviceCounters::launches and inject_fault, and the memory
/// that it may access. Without this call, launches are counted by their mangled names and may access everything.
void declare_launch(std::string name, std::vector<Access> accesses);

/// A launch of a kernel that nvcc compiled.
struct CompiledLaunch {
    std::string kernel;  // mangled
    std::string name;    // declared, otherwise mangled
    dim3 grid, block;
    std::size_t shared;
    void** arguments;  // valid during the launch only
    // Allocations that the launch's device may touch, by address; one object until they change.
    std::shared_ptr<const std::vector<Access>> memory;
    std::optional<std::vector<Access>> declared;
};
/// Makes the work of a launch, for the stream's worker. The work calls `kernel_fault` for every fault of the kernel.
using CompiledKernels = std::function<std::function<void()>(const CompiledLaunch&)>;
/// Launches do this from now on. Until then they compute nothing.
void run_compiled_kernels(CompiledKernels kernels);
/// Records a mistake of a kernel; `fatal` ones lose the context.
void kernel_fault(std::string message, bool fatal);

}  // namespace standin
