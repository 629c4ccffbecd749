// Memory: the map of blocks, allocation, and checks of kernels' accesses.
#include <cstdlib>
#include <cstring>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

constexpr std::size_t kAlignment = 512;
constexpr std::size_t kQuarantineBytes = std::size_t{64} << 20;
constexpr int kPoison = 0xFF;  // NaN in every float type, -1 in every integer type

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

std::string describe(const Block& block) {
    return std::to_string(block.bytes) + " bytes" +
           (block.type == MemoryType::device ? " of device " + std::to_string(block.device) : " of pinned host memory");
}

}  // namespace

const Block* Call::find(const void* data, std::size_t bytes) {
    const std::uintptr_t begin = address_of(data);
    const auto next = state_.blocks.upper_bound(begin);
    if (next != state_.blocks.end() && next->first < begin + bytes)
        refuse(cudaErrorInvalidValue, Kind::out_of_bounds, "the range extends into a block that it does not begin in");
    if (next != state_.blocks.begin()) {
        const auto& [base, block] = *std::prev(next);
        if (begin < base + block.bytes) {
            if (begin + bytes > base + block.bytes)
                refuse(cudaErrorInvalidValue, Kind::out_of_bounds,
                       std::to_string(bytes) + " bytes at offset " + std::to_string(begin - base) +
                           " leave a block of " + describe(block));
            return &block;
        }
    }
    const auto later = state_.freed.upper_bound(begin);
    if (later != state_.freed.begin()) {
        const auto& [base, size] = *std::prev(later);
        if (begin < base + size)
            refuse(cudaErrorInvalidValue, Kind::use_after_free,
                   "memory at offset " + std::to_string(begin - base) + " of a freed block of " + std::to_string(size) +
                       " bytes");
    }
    return nullptr;
}

void Call::allocate(void** data, std::size_t bytes, const Block& kind) {
    if (data == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "null pointer for the result");
    *data = nullptr;
    if (bytes == 0) return;
    const bool on_device = kind.type == MemoryType::device;
    if (on_device) {
        const Device& owner = device(kind.device);
        auto& counted = state_.counted.devices[static_cast<std::size_t>(kind.device)];
        if (bytes > owner.config.memory - std::min(owner.config.memory, counted.bytes_in_use))
            throw Failure{cudaErrorMemoryAllocation};
        counted.bytes_in_use += bytes;
        counted.bytes_peak = std::max(counted.bytes_peak, counted.bytes_in_use);
        ++counted.live_allocations;
    }
    Block block = kind;
    block.bytes = bytes;
    block.base = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (block.base == nullptr) throw Failure{cudaErrorMemoryAllocation};
    if (on_device) std::memset(block.base, kPoison, bytes);
    state_.blocks.emplace(address_of(block.base), block);
    state_.memory_of_launches.clear();
    *data = block.base;
}

Block Call::release(void* data, MemoryType type) {
    const auto found = state_.blocks.find(address_of(data));
    if (found == state_.blocks.end()) {
        if (state_.freed.contains(address_of(data)))
            refuse(cudaErrorInvalidValue, Kind::double_free, "the block was freed before");
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "no block begins there");
    }
    const Block block = found->second;
    if (block.type != type) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the block is " + describe(block));
    state_.blocks.erase(found);
    state_.memory_of_launches.clear();
    if (type == MemoryType::device) {
        auto& counted = state_.counted.devices[static_cast<std::size_t>(block.device)];
        counted.bytes_in_use -= block.bytes;
        --counted.live_allocations;
    }
    return block;
}

void Call::bury(const Block& block, std::vector<MarkerPtr> last_uses) {
    state_.freed[address_of(block.base)] = block.bytes;
    state_.quarantine.push_back({block.base, block.bytes, std::move(last_uses)});
    state_.quarantined_bytes += block.bytes;
    while (state_.quarantined_bytes > kQuarantineBytes) {
        const Buried& oldest = state_.quarantine.front();
        for (const auto& use : oldest.last_uses)
            if (!use->done()) return;
        state_.quarantined_bytes -= oldest.bytes;
        state_.freed.erase(address_of(oldest.memory));
        std::free(oldest.memory);
        state_.quarantine.pop_front();
    }
}

void Call::check_accesses(int device_index, const std::string& kernel, const std::vector<Access>& accesses) {
    const std::string where = kernel + " on device " + std::to_string(device_index) + ": ";
    const auto& peers = device(device_index).peers;
    for (const auto& access : accesses) {
        if (access.bytes == 0) continue;
        const Block* block = nullptr;
        try {
            block = find(access.data, access.bytes);
        } catch (const Refusal& refusal) {
            refuse(cudaErrorIllegalAddress, refusal.kind, where + refusal.message);
        }
        if (block == nullptr)
            refuse(cudaErrorIllegalAddress, Kind::host_memory, where + "memory that CUDA does not know");
        const int owner = block->type == MemoryType::device ? block->device : kHost;
        if (owner == device_index) continue;
        if (owner != kHost && !peers.contains(owner))
            refuse(cudaErrorIllegalAddress, Kind::no_peer_access,
                   where + "memory of device " + std::to_string(owner) + " without peer access");
        auto& pair =
            state_.counted.pairs[access.write ? std::pair{device_index, owner} : std::pair{owner, device_index}];
        ++(access.write ? pair.kernel_writes : pair.kernel_reads);
        (access.write ? pair.kernel_write_bytes : pair.kernel_read_bytes) += access.bytes;
    }
}

void Call::launch(const std::shared_ptr<Stream>& target, const std::string& kernel, std::function<void()> body,
                  const std::vector<Access>& accesses) {
    check_accesses(target->device(), kernel, accesses);
    ++state_.counted.devices[static_cast<std::size_t>(target->device())].launches[kernel];
    if (const cudaError_t fault = fault_of_launch(kernel); fault != cudaSuccess)
        body = [fault] { set_sticky_error(fault); };
    else if (!state_.config.runs_kernels)
        body = [] {};
    target->enqueue(std::move(body));
}

void Call::count_arithmetic(const char* dtype, const char* math) {
    DeviceCounters& counted = state_.counted.devices[static_cast<std::size_t>(current_device())];
    ++counted.arithmetic[std::string(name_) + " " + dtype + " " + math];
}

cudaError_t enqueue_host_kernel(cudaStream_t stream, std::string name, std::function<void()> body,
                                std::vector<Access> accesses) {
    return runtime_call("cudaLaunchKernel", [&](Call& call) {
        if (!body) refuse(cudaErrorInvalidValue, Kind::invalid_argument, name + ": no host twin");
        call.launch(call.launch_stream(stream), name, std::move(body), accesses);
    });
}

namespace {

void free_device(Call& call, void* data) {
    if (data == nullptr) return;
    const Block block = call.release(data, MemoryType::device);
    auto uses = call.mark_device(block.device);
    if (!block.pool) {
        for (const auto& use : uses) call.wait(use);
        std::memset(block.base, kPoison, block.bytes);
    }
    call.bury(block, std::move(uses));
}

void free_pinned(Call& call, void* data) {
    if (data == nullptr) return;
    const Block block = call.release(data, MemoryType::pinned);
    std::vector<MarkerPtr> uses;
    for (int each = 0; each < static_cast<int>(call.state().devices.size()); ++each)
        for (auto& use : call.mark_device(each)) uses.push_back(std::move(use));
    call.bury(block, std::move(uses));
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
    return runtime_call("cudaMalloc", [&](Call& call) {
        call.allocate(data, bytes, {0, MemoryType::device, call.current_device(), false, nullptr});
    });
}

// Waits for the device; other threads' calls wait for this one.
cudaError_t cudaFree(void* data) {
    const DriverLock held;
    return runtime_call("cudaFree", [&](Call& call) { free_device(call, data); });
}

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
    return runtime_call("cudaMallocAsync", [&](Call& call) {
        call.allocate(data, bytes, {0, MemoryType::device, call.stream(stream)->device(), true, nullptr});
    });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
    return runtime_call("cudaFreeAsync", [&](Call& call) {
        const auto target = call.work_stream(stream);
        if (data == nullptr) return;
        const Block block = call.release(data, MemoryType::device);
        target->enqueue([block] { std::memset(block.base, kPoison, block.bytes); });
        call.bury(block, {target->enqueue_marker()});
    });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    return runtime_call("cudaMemGetInfo", [&](Call& call) {
        const std::size_t all = call.device(call.current_device()).config.memory;
        const std::size_t used =
            call.state().counted.devices[static_cast<std::size_t>(call.current_device())].bytes_in_use;
        *total = all;
        *free_bytes = all - std::min(all, used);
    });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
    return runtime_call("cudaMallocHost", [&](Call& call) {
        call.allocate(data, bytes, {0, MemoryType::pinned, call.current_device(), false, nullptr});
    });
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int flags) {
    return runtime_call("cudaHostAlloc", [&](Call& call) {
        if ((flags & ~(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) != 0)
            refuse(cudaErrorInvalidValue, Kind::invalid_argument, "unknown flags");
        call.allocate(data, bytes, {0, MemoryType::pinned, call.current_device(), false, nullptr});
    });
}

cudaError_t cudaFreeHost(void* data) {
    return runtime_call("cudaFreeHost", [&](Call& call) { free_pinned(call, data); });
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned int) {
    return runtime_call("cudaHostRegister", [&](Call& call) {
        if (data == nullptr || bytes == 0) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "an empty range");
        if (call.find(data, bytes) != nullptr)
            refuse(cudaErrorHostMemoryAlreadyRegistered, Kind::invalid_argument, "the range is already registered");
        call.state().blocks.emplace(address_of(data),
                                    Block{bytes, MemoryType::registered, call.current_device(), false, data});
        call.state().memory_of_launches.clear();
    });
}

cudaError_t cudaHostUnregister(void* data) {
    return runtime_call("cudaHostUnregister", [&](Call& call) {
        const auto found = call.state().blocks.find(address_of(data));
        if (found == call.state().blocks.end() || found->second.type != MemoryType::registered)
            refuse(cudaErrorHostMemoryNotRegistered, Kind::invalid_argument, "the range is not registered");
        call.state().blocks.erase(found);
        call.state().memory_of_launches.clear();
    });
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned int) {
    return runtime_call("cudaHostGetDevicePointer", [&](Call& call) {
        const Block* block = call.find(on_host, 1);
        if (block == nullptr || block->type == MemoryType::device)
            refuse(cudaErrorInvalidValue, Kind::invalid_argument, "not pinned memory");
        *on_device = on_host;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
    return runtime_call("cudaPointerGetAttributes", [&](Call& call) {
        *attributes = {};
        const Block* block = call.find(data, 1);
        const bool on_device = block != nullptr && block->type == MemoryType::device;
        attributes->type = block == nullptr ? cudaMemoryTypeUnregistered
                           : on_device      ? cudaMemoryTypeDevice
                                            : cudaMemoryTypeHost;
        attributes->device = block == nullptr ? cudaInvalidDeviceId : block->device;
        attributes->devicePointer = block == nullptr ? nullptr : const_cast<void*>(data);
        attributes->hostPointer = on_device ? nullptr : const_cast<void*>(data);
    });
}

}  // extern "C"
