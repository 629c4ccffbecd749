// Launcher of the library's own kernels. nvcc compiles a functor to a kernel; any other compiler makes a loop over the
// same functor, which the CUDA stand-in of the tests enqueues on its stream.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/random.h"  // LOCKSTEP_HD
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

/// Memory that a kernel may access.
struct Touched {
    const void* address;
    std::size_t bytes;
    bool written;
};

/// Memory that the kernels of a record may access. Only tests ask for the list.
class Declaration {
public:
    virtual void list(std::vector<Touched>& all) const = 0;

protected:
    ~Declaration() = default;
};

/// Stream of the kernels of one record, and what they may access (null: nothing). Valid while the record is enqueued.
struct Queue {
    cudaStream_t stream;
    const Declaration* declaration;
};

/// Test hook: called before each launch of a compiled kernel. Null in production.
inline void (*before_launch)(const Queue& queue, const char* name) = nullptr;

inline constexpr int block_threads = 256;

/// Blocks of which a multiprocessor holds at least this many at a time, which limits registers to 65536 / block_threads
/// / blocks per thread: F::resident_blocks if F has it. 0: ptxas chooses. Its choice for some kernels needs a few
/// registers more than there are, which are then spilled (tests/ptx/test_resources.cpp).
template <class F>
inline constexpr int resident_blocks = 0;
template <class F>
requires requires { F::resident_blocks; }
inline constexpr int resident_blocks<F> = F::resident_blocks;

#if defined(__CUDACC__)

template <class F>
__global__ void __launch_bounds__(block_threads, resident_blocks<F>) run_functor(F functor, std::int64_t n) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        functor(i);
}

/// Blocks for `n` units of work at `per_block` units per block: enough to fill any GPU, few enough to be cheap to
/// launch.
inline unsigned blocks_for(std::int64_t n, int per_block = block_threads) {
    return static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(n, per_block), 1, 16384));
}

/// Enqueues a kernel in blocks of block_threads. Throws only for errors of this launch: cudaGetLastError may return an
/// older, unread error, and a caller that mistook it for this launch's error would launch twice.
template <class... Parameters>
void launch_blocks(const Queue& queue, const char* name, unsigned blocks, void (*kernel)(Parameters...),
                   Parameters... arguments) {
    cudaLaunchConfig_t how{};
    how.gridDim = dim3(blocks);
    how.blockDim = dim3(block_threads);
    how.stream = queue.stream;
    void* addresses[] = {&arguments...};
    if (before_launch != nullptr) before_launch(queue, name);
    check(cudaLaunchKernelExC(&how, reinterpret_cast<const void*>(kernel), addresses), name);
}

#else

/// Enqueues a kernel's twin on the stand-in; defined in tests/cuda_standin.
cudaError_t enqueue_host_twin(const Queue& queue, const char* name, std::function<void()> body);

#endif

/// Enqueues functor(i) for i in [0, n), in any order and concurrently.
template <class F>
void launch(const Queue& queue, const char* name, std::int64_t n, F functor) {
    if (n <= 0) return;
#if defined(__CUDACC__)
    launch_blocks(queue, name, blocks_for(n), run_functor<F>, functor, n);
#else
    const auto loop = [functor, n] {
        for (std::int64_t i = 0; i < n; ++i) functor(i);
    };
    check(enqueue_host_twin(queue, name, loop), name);
#endif
}

}  // namespace lockstep::cuda
