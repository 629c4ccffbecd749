// The CUDA backend: GPUs as the driver shows them, split in logical devices.
#pragma once

#include <cuda_runtime_api.h>

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
    /// Opens the peer's memory when asked for the first time; true where kernels may read it from then on.
    bool peer_access(int reader, int owner) override;
    bool host_access() override { return false; }
    std::unique_ptr<StreamImpl> make_stream(int index, StreamRole role) override;
    std::unique_ptr<EventImpl> make_event(int index) override;
    void* allocate(int index, std::size_t bytes) override;
    void release(int index, void* memory, std::size_t bytes) noexcept override;
    void* allocate_pinned(std::size_t bytes) override;
    void release_pinned(void* memory, std::size_t bytes) noexcept override;
    std::string absence_reason() override;

    /// The runtime's index for a CUDA device; -1 for the host and for CPU devices, whose memory is the host's.
    int gpu_of(Device device);
    /// A device on which this process works already, or the first one: where host-side questions are put to libraries.
    int any_device();

private:
    struct Layout {
        int gpus = 0;
        int per_gpu = 1;
        std::string absence;
        std::vector<std::size_t> in_use;  // bytes, per logical device
        std::vector<std::size_t> share;   // bytes, per logical device; 0: all there is
        int first_used = -1;
    };
    /// Looked up once; a malformed environment throws every time.
    Layout& layout();
    int gpu_of(int index) { return index / layout().per_gpu; }

    std::mutex mutex_;
    std::unique_ptr<Layout> layout_;
    std::map<std::pair<int, int>, bool> peers_;  // by GPU: reader, owner
};

/// Direction of a copy between two GPUs; -1 stands for the host.
cudaMemcpyKind copy_kind(int to_gpu, int from_gpu);

CudaBackend& backend();

}  // namespace lockstep::cuda
