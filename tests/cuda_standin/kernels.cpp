// Functions that nvcc's host code calls: launches of kernels that it compiled. A launch is checked and counted. It runs
// the function given to run_compiled_kernels; by default, nothing is computed.
#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

struct Kernels {
    std::mutex mutex;
    std::map<const void*, std::string> names;  // by the address of the host's function
    CompiledKernels run;
};
Kernels& kernels() {
    static auto* all = new Kernels;
    return *all;
}

std::string name_of(const void* function) {
    const std::scoped_lock lock(kernels().mutex);
    const auto found = kernels().names.find(function);
    if (found == kernels().names.end())
        refuse(cudaErrorInvalidDeviceFunction, Kind::invalid_argument, "no kernel was registered at this address");
    return found->second;
}

struct DeclaredLaunch {
    std::string name;
    std::vector<Access> accesses;
};
std::optional<DeclaredLaunch>& next_launch() {
    thread_local std::optional<DeclaredLaunch> next;
    return next;
}

struct Configuration {
    dim3 grid, block;
    std::size_t shared;
    cudaStream_t stream;
};
std::vector<Configuration>& configurations() {
    thread_local std::vector<Configuration> pushed;
    return pushed;
}

/// Allocations that a device's kernels may touch.
std::shared_ptr<const std::vector<Access>> memory_of(Call& call, int device) {
    std::shared_ptr<const std::vector<Access>>& known = call.state().memory_of_launches[device];
    if (known) return known;
    const std::set<int>& peers = call.device(device).peers;
    std::vector<Access> memory;
    for (const auto& [begin, block] : call.state().blocks)
        if (block.type != MemoryType::device || block.device == device || peers.contains(block.device))
            memory.push_back({reinterpret_cast<const void*>(begin), block.bytes, true});
    known = std::make_shared<const std::vector<Access>>(std::move(memory));
    return known;
}

cudaError_t launch(const char* call_name, const void* function, const Configuration& how, void** arguments) {
    std::optional<DeclaredLaunch> declared = std::exchange(next_launch(), std::nullopt);
    return runtime_call(call_name, [&](Call& call) {
        const auto threads = std::uint64_t{how.block.x} * how.block.y * how.block.z;
        if (threads == 0 || threads > 1024 || how.grid.x == 0 || how.grid.y == 0 || how.grid.z == 0 ||
            how.shared > (std::size_t{48} << 10))
            throw Failure{cudaErrorInvalidConfiguration};
        const std::shared_ptr<Stream> stream = call.launch_stream(how.stream);
        CompiledLaunch all{name_of(function), {}, how.grid, how.block, how.shared, arguments, nullptr, {}};
        all.name = declared ? declared->name : all.kernel;
        if (declared) all.declared = declared->accesses;
        std::function<void()> work = [] {};
        if (kernels().run) {
            all.memory = memory_of(call, stream->device());
            work = kernels().run(all);
        }
        call.launch(stream, all.name, std::move(work), declared ? declared->accesses : std::vector<Access>());
    });
}

}  // namespace

void declare_launch(std::string name, std::vector<Access> accesses) {
    next_launch() = DeclaredLaunch{std::move(name), std::move(accesses)};
}

void run_compiled_kernels(CompiledKernels how) { kernels().run = std::move(how); }

void kernel_fault(std::string message, bool fatal) {
    record_mistake(Kind::kernel, std::move(message));
    if (fatal) set_sticky_error(cudaErrorIllegalAddress);
}

}  // namespace standin

using namespace standin;

extern "C" {

void** __cudaRegisterFatBinary(void* code) {
    static void* handle = nullptr;
    handle = code;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    const std::scoped_lock lock(kernels().mutex);
    kernels().names[function] = name;
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
    configurations().push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
    const Configuration how = configurations().back();
    configurations().pop_back();
    *grid = how.grid;
    *block = how.block;
    *shared = how.shared;
    *static_cast<cudaStream_t*>(stream) = how.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
    return launch("cudaLaunchKernel", kernel, {grid, block, shared, stream}, arguments);
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
    return launch("cudaLaunchKernel", function, {grid, block, shared, stream}, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* function, void** arguments) {
    return launch("cudaLaunchKernelExC", function, {how->gridDim, how->blockDim, how->dynamicSmemBytes, how->stream},
                  arguments);
}

}  // extern "C"
