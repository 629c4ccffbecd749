// Memory allocated in stream order, for rare needs that do not justify permanent scratch.
#pragma once

#include <cuda_runtime_api.h>

#include "lockstep/runtime/cuda/check.h"

namespace lockstep::cuda {

/// Freed after the work enqueued on the stream so far. The stream's device must be current.
class StreamMemory {
public:
    StreamMemory(cudaStream_t stream, std::size_t bytes) : stream_(stream) {
        check(cudaMallocAsync(&data_, bytes, stream), "cudaMallocAsync");
    }
    ~StreamMemory() { check_quietly(cudaFreeAsync(data_, stream_)); }
    StreamMemory(const StreamMemory&) = delete;
    StreamMemory& operator=(const StreamMemory&) = delete;
    void* data() const { return data_; }

private:
    cudaStream_t stream_;
    void* data_ = nullptr;
};

}  // namespace lockstep::cuda
