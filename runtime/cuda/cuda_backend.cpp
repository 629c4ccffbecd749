#include "lockstep/runtime/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/devices.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace cuda {

cudaMemcpyKind copy_kind(int to_gpu, int from_gpu) {
    if (to_gpu < 0) return from_gpu < 0 ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost;
    return from_gpu < 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice;
}

CudaBackend::Layout& CudaBackend::layout() {
    if (Layout* known = known_.load(std::memory_order_acquire)) return *known;
    const std::scoped_lock lock(mutex_);  // every thread that comes here needs what the first one asks the driver
    if (!layout_) {
        auto made = std::make_unique<Layout>();
        made->per_gpu = devices_per_gpu();
        Inventory found = look_for_gpus();
        made->gpus = std::vector<Gpu>(static_cast<std::size_t>(found.gpus));
        if (found.gpus > 0) forked::note_driver();
        made->absence = std::move(found.absence);
        const auto devices = made->gpus.size() * static_cast<std::size_t>(made->per_gpu);
        made->in_use = std::vector<std::atomic<std::size_t>>(devices);
        made->share = std::vector<std::atomic<std::size_t>>(devices);
        layout_ = std::move(made);
        known_.store(layout_.get(), std::memory_order_release);
    }
    return *layout_;
}

int CudaBackend::device_count() {
    const Layout& all = layout();
    return static_cast<int>(all.gpus.size()) * all.per_gpu;
}

int CudaBackend::use(int index) {
    Layout& all = layout();
    const int gpu = gpu_of(index);
    all.gpus[static_cast<std::size_t>(gpu)].used = true;
    int none = -1;
    all.first_used.compare_exchange_strong(none, gpu);
    return gpu;
}

std::string CudaBackend::absence_reason() { return layout().absence; }

int CudaBackend::gpu_of(Device device) { return device.kind() == DeviceKind::cuda ? gpu_of(device.index()) : -1; }

DeviceInfo CudaBackend::info(int index) {
    const Layout& all = layout();
    const int gpu = gpu_of(index);
    DeviceInfo info = gpu_info(gpu, all.gpus[static_cast<std::size_t>(gpu)].used);
    if (all.per_gpu == 1) return info;
    info.name += fmt::format(" ({} of {})", index % all.per_gpu + 1, all.per_gpu);
    info.total_memory /= static_cast<std::size_t>(all.per_gpu);
    const std::size_t used = all.in_use[static_cast<std::size_t>(index)];
    if (info.free_memory)
        info.free_memory = std::min(*info.free_memory, info.total_memory - std::min(used, info.total_memory));
    return info;
}

std::uint64_t CudaBackend::hardware(int index) {
    const int gpu = gpu_of(index);
    auto& known = layout().gpus[static_cast<std::size_t>(gpu)].hardware;
    if (known == 0) known = hardware_of(gpu);
    return known;
}

bool CudaBackend::peer_access(int reader, int owner) {
    require_healthy();
    const std::pair pair(gpu_of(reader), gpu_of(owner));
    if (pair.first == pair.second) return true;
    const auto& gpus = layout().gpus;
    if (!gpus[static_cast<std::size_t>(pair.first)].used || !gpus[static_cast<std::size_t>(pair.second)].used)
        return can_open_peer(pair.first, pair.second);
    {
        const std::scoped_lock lock(mutex_);
        if (const auto known = peers_.find(pair); known != peers_.end()) return known->second;
    }
    const bool open = open_peer(pair.first, pair.second);
    const std::scoped_lock lock(mutex_);
    return peers_[pair] = open;
}

std::unique_ptr<StreamImpl> CudaBackend::make_stream(int index, StreamRole /*role*/) {
    return std::make_unique<CudaStream>(*this, index, use(index));
}

std::unique_ptr<EventImpl> CudaBackend::make_event(int index, bool timed) {
    return std::make_unique<CudaEvent>(use(index), timed);
}

void* CudaBackend::allocate(int index, std::size_t bytes) {
    Layout& all = layout();
    const auto slot = static_cast<std::size_t>(index);
    const ScopedDevice scope(use(index));
    if (all.per_gpu > 1) {
        if (all.share[slot] == 0) all.share[slot] = info(index).total_memory;
        const std::size_t share = all.share[slot], used = all.in_use[slot];
        if (bytes > share - std::min(used, share)) return nullptr;
    }
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    check(status, "cudaMalloc");
    all.in_use[slot] += bytes;
    return memory;
}

namespace {

/// Releases memory with `free`, which waits until the device is idle. It may block other threads from the driver
/// meanwhile, including those that must finish the device's work. Therefore synchronizes first.
template <class Free>
void free_on(int gpu, Free&& free) noexcept {
    quietly_on(gpu, [&] {
        check_quietly(cudaDeviceSynchronize());
        return free();
    });
}

}  // namespace

void CudaBackend::release(int index, void* memory, std::size_t bytes) noexcept {
    if (memory == nullptr || !is_healthy()) return;
    layout_->in_use[static_cast<std::size_t>(index)] -= bytes;
    free_on(index / layout_->per_gpu, [&] { return cudaFree(memory); });
}

void* CudaBackend::allocate_pinned(std::size_t bytes) {
    const ScopedDevice scope(layout().first_used);
    void* memory = nullptr;
    // Portable: pinned for every device, whichever is current.
    const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    check(status, "cudaHostAlloc");
    return memory;
}

void CudaBackend::release_pinned(void* memory, std::size_t /*bytes*/) noexcept {
    if (memory != nullptr) free_on(layout_->first_used, [&] { return cudaFreeHost(memory); });
}

CudaBackend& backend() {
    static auto* instance = new CudaBackend;  // streams and memory are returned to it until the very end
    return *instance;
}

}  // namespace cuda

Backend* lockstep_cuda_backend(std::string& /*absence*/) { return &cuda::backend(); }

}  // namespace lockstep
