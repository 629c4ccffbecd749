// The CUDA backend: GPUs as listed by the driver, split into logical devices.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/runtime/internal/backend.h"

namespace lockstep::cuda {

class CudaBackend final : public Backend {
public:
    int device_count() override;
    DeviceInfo info(int index) override;
    std::uint64_t hardware(int index) override;
    /// If both devices are in use, enables peer access on the first call; true if kernels may read the peer's memory
    /// from then on. Otherwise returns whether access is possible.
    bool peer_access(int reader, int owner) override;
    bool host_access() override { return false; }
    bool in_use() override { return layout().first_used >= 0; }
    std::unique_ptr<StreamImpl> make_stream(int index, StreamRole role) override;
    std::unique_ptr<EventImpl> make_event(int index, bool timed) override;
    void* allocate(int index, std::size_t bytes) override;
    void release(int index, void* memory, std::size_t bytes) noexcept override;
    void* allocate_pinned(std::size_t bytes) override;
    void release_pinned(void* memory, std::size_t bytes) noexcept override;
    std::string absence_reason() override;

    /// The runtime's index for a CUDA device; -1 for the host and for CPU devices, whose memory is the host's.
    int gpu_of(Device device);

private:
    struct Gpu {
        std::atomic<std::uint64_t> hardware{0};  // 0: not queried yet
        std::atomic<bool> used{false};           // by this process, which has a context on it
    };
    struct Layout {
        std::vector<Gpu> gpus;
        int per_gpu = 1;
        std::string absence;
        std::vector<std::atomic<std::size_t>> in_use;  // bytes, per logical device
        std::vector<std::atomic<std::size_t>> share;   // bytes, per logical device; 0: all memory
        std::atomic<int> first_used{-1};               // GPU in whose context host memory is pinned
    };
    /// Determined once; a malformed environment throws every time.
    Layout& layout();
    int gpu_of(int index) { return index / layout().per_gpu; }
    /// The GPU of a logical device, which counts as in use from now on.
    int use(int index);

    std::mutex mutex_;
    std::unique_ptr<Layout> layout_;
    std::atomic<Layout*> known_{nullptr};        // layout_, which calls read without the lock
    std::map<std::pair<int, int>, bool> peers_;  // by GPU: reader, owner
};

/// Direction of a copy between two GPUs; -1 is the host.
cudaMemcpyKind copy_kind(int to_gpu, int from_gpu);

CudaBackend& backend();

}  // namespace lockstep::cuda
