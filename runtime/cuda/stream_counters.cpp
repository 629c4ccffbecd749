#include "lockstep/runtime/cuda/stream_counters.h"

#include <map>
#include <memory>
#include <mutex>

#include "lockstep/runtime/cuda/stream_memory.h"

namespace lockstep::cuda {

namespace {

struct CountersOfStreams {
    std::mutex mutex;
    std::map<cudaStream_t, std::unique_ptr<StreamMemory>> of;
};

CountersOfStreams& counters_of_streams() {
    static auto* all = new CountersOfStreams;  // streams are destroyed until the very end
    return *all;
}

}  // namespace

unsigned* counters_of(cudaStream_t stream) {
    CountersOfStreams& all = counters_of_streams();
    {
        const std::scoped_lock lock(all.mutex);
        if (const auto known = all.of.find(stream); known != all.of.end())
            return static_cast<unsigned*>(known->second->data());
    }
    // Without the lock, as the allocation may wait for this GPU. No other thread enqueues on the stream.
    constexpr std::size_t bytes = stream_counters * sizeof(unsigned);
    auto made = std::make_unique<StreamMemory>(stream, bytes);
    check(cudaMemsetAsync(made->data(), 0, bytes, stream), "cudaMemsetAsync");
    const std::scoped_lock lock(all.mutex);
    return static_cast<unsigned*>((all.of[stream] = std::move(made))->data());
}

void release_counters(cudaStream_t stream) {
    std::unique_ptr<StreamMemory> released;
    CountersOfStreams& all = counters_of_streams();
    const std::scoped_lock lock(all.mutex);
    if (const auto known = all.of.find(stream); known != all.of.end()) {
        released = std::move(known->second);
        all.of.erase(known);
    }
}

}  // namespace lockstep::cuda
