// The one way in which kernels of our own are started. nvcc makes a kernel of a functor; any other compiler makes a
// loop over the same functor, which the CUDA stand-in of the tests enqueues on its stream.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/random.h"  // LOCKSTEP_HOST_DEVICE

namespace lockstep::cuda {

/// Memory that a kernel may touch.
struct Touched {
    const void* address;
    std::size_t bytes;
    bool written;
};

/// Where the kernels of one record go, and all that they may touch (the stand-in holds them to it).
struct Queue {
    cudaStream_t stream;
    std::span<const Touched> touched;
};

inline constexpr int block_threads = 256;

#if defined(__CUDACC__)

template <class F>
__global__ void __launch_bounds__(block_threads) run_functor(F functor, std::int64_t n) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        functor(i);
}

/// Blocks for `n` units of work of which a block does `per_block`: enough to fill any GPU, few enough to be cheap to
/// start.
inline unsigned blocks_for(std::int64_t n, int per_block = block_threads) {
    return static_cast<unsigned>(std::clamp<std::int64_t>((n + per_block - 1) / per_block, 1, 16384));
}

/// Enqueues a kernel in blocks of block_threads. What it throws is of this launch alone: cudaGetLastError may return an
/// older error that nobody has read, and whoever took that for the launch's would make the launch twice.
template <class... Parameters>
void launch_blocks(const Queue& queue, const char* name, unsigned blocks, void (*kernel)(Parameters...),
                   Parameters... arguments) {
    cudaLaunchConfig_t how{};
    how.gridDim = dim3(blocks);
    how.blockDim = dim3(block_threads);
    how.stream = queue.stream;
    void* addresses[] = {&arguments...};
    check(cudaLaunchKernelExC(&how, reinterpret_cast<const void*>(kernel), addresses), name);
}

#else

/// Enqueues a twin on the stand-in; defined in tests/cuda_standin.
cudaError_t enqueue_host_twin(cudaStream_t stream, const char* name, std::function<void()> body,
                              std::span<const Touched> touched);

#endif

/// Enqueues functor(i) for i in [0, n), in any order and at the same time.
template <class F>
void launch(const Queue& queue, const char* name, std::int64_t n, F functor) {
    if (n <= 0) return;
#if defined(__CUDACC__)
    launch_blocks(queue, name, blocks_for(n), run_functor<F>, functor, n);
#else
    const auto loop = [functor, n] {
        for (std::int64_t i = 0; i < n; ++i) functor(i);
    };
    check(enqueue_host_twin(queue.stream, name, loop, queue.touched), name);
#endif
}

}  // namespace lockstep::cuda
