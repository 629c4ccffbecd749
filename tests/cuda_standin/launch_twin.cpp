// Enqueues host twins of the library's kernels on the stand-in's streams.
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/cuda/launch.h"
#include "lockstep/tests/cuda_standin/standin.h"

namespace lockstep::cuda {

cudaError_t enqueue_host_twin(const Queue& queue, const char* name, std::function<void()> body) {
    std::vector<Touched> touched;
    if (queue.declaration != nullptr) queue.declaration->list(touched);
    std::vector<standin::Access> accesses;
    for (const Touched& each : touched) accesses.push_back({each.address, each.bytes, each.written});
    return standin::enqueue_host_kernel(queue.stream, name, std::move(body), std::move(accesses));
}

}  // namespace lockstep::cuda
