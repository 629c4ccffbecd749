// Host twins of our kernels go to the stand-in's streams.
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/cuda/launch.h"
#include "lockstep/tests/cuda_standin/standin.h"

namespace lockstep::cuda {

cudaError_t enqueue_host_twin(cudaStream_t stream, const char* name, std::function<void()> body,
                              std::span<const Touched> touched) {
    std::vector<standin::Access> accesses;
    for (const Touched& each : touched) accesses.push_back({each.address, each.bytes, each.written});
    return standin::enqueue_host_kernel(stream, name, std::move(body), std::move(accesses));
}

}  // namespace lockstep::cuda
