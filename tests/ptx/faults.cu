// Kernels with planted faults, and next to some of them the right form.
#include <cstdint>

extern "C" {

__global__ void in_bounds(float* to, int first) { to[first + threadIdx.x] = 1; }

__global__ void shared_index(float* to, int first) {
    __shared__ float s[64];
    s[threadIdx.x] = 0;
    s[threadIdx.x + 32] = 0;
    __syncthreads();
    s[threadIdx.x + first] = 1;
    __syncthreads();
    to[threadIdx.x] = s[threadIdx.x];
}

__global__ void vector_at(float* to, int first) { *reinterpret_cast<float4*>(to + first) = make_float4(1, 2, 3, 4); }

__global__ void neighbours(float* to, int with_barrier) {
    __shared__ float s[256];
    s[threadIdx.x] = threadIdx.x;
    if (with_barrier) __syncthreads();
    to[threadIdx.x] = s[(threadIdx.x + 1) % 256];
}

// Without the second barrier a fast warp overwrites what a slow one still reads.
__global__ void reuse(float* to, int with_barrier) {
    __shared__ float s[256];
    for (int i = 0; i < 3; ++i) {
        s[threadIdx.x] = threadIdx.x + i;
        __syncthreads();
        to[threadIdx.x] = s[(threadIdx.x + 1) % 256];
        if (with_barrier) __syncthreads();
    }
}

__global__ void set_up_to(float* to, int n) {
    __shared__ float s[256];
    if (threadIdx.x < n) s[threadIdx.x] = 1;
    __syncthreads();
    to[threadIdx.x] = s[threadIdx.x];
}

__global__ void local_up_to(float* to, int n, int which) {
    float values[16];
    for (int i = 0; i < n; ++i) values[i] = i;
    to[threadIdx.x] = values[(threadIdx.x + which) & 15];
}

__global__ void barrier_for(float* to, int n) {
    if (threadIdx.x < n) __syncthreads();
    to[threadIdx.x] = 1;
}

__global__ void shuffle_with(float* to, unsigned mask, int from) {
    float value = threadIdx.x;
    if (threadIdx.x % 32 < 16) value = __shfl_sync(mask, value, from);
    to[threadIdx.x] = value;
}

__global__ void add_to(float* to, int shared_by) { to[threadIdx.x / shared_by] += 1; }

__global__ void across_blocks(float* to, int apart) {
    if (blockIdx.x == 0) {
        to[threadIdx.x] = 1;
    } else {
        to[threadIdx.x + 512] = to[threadIdx.x + apart];
    }
}

__global__ void counted(unsigned* to, int plain) {
    atomicAdd(to, 1u);
    if (plain && threadIdx.x == 0) *to = 0;
}

// The block that stores the last of the sums adds them.
__global__ void last_block(const float* x, float* sums, unsigned* stored, float* y, int without) {
    enum { first_fence = 1, first_barrier = 2, counter = 3, second_fence = 4, second_barrier = 5 };
    __shared__ float s[64];
    __shared__ bool is_last;
    s[threadIdx.x] = x[64 * blockIdx.x + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 40) sums[blockIdx.x] = s[0] + s[63];
    if (without != first_barrier) __syncthreads();
    if (threadIdx.x == 0) {
        if (without != first_fence) __threadfence();
        is_last = atomicInc(stored + (without == counter ? blockIdx.x : 0), gridDim.x - 1) == gridDim.x - 1;
        if (without == counter) is_last = blockIdx.x + 1 == gridDim.x;
        if (without != second_fence) __threadfence();
    }
    if (without != second_barrier) __syncthreads();
    if (threadIdx.x == 1 && is_last) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; ++b) sum += sums[b];
        *y = sum;
    }
}

// The same for warps.
__global__ void last_warp(float* sums, unsigned* stored, float* y, int without) {
    enum { first_fence = 1, order = 2, second_fence = 3, barrier = 4 };
    const int warp = blockIdx.x * 2 + threadIdx.x / 32, last = gridDim.x * 2 - 1;
    bool is_last = false;
    if (threadIdx.x % 32 == 0) {
        if (without != order) sums[warp] = warp;
        if (without != first_fence) __threadfence();
        is_last = atomicInc(stored, last) == last;
        if (without == order) sums[warp] = warp;
        if (without != second_fence) __threadfence();
    }
    is_last = __shfl_sync(0xffffffffu, is_last, 0);
    if (without != barrier) __syncwarp();
    if (threadIdx.x % 32 == 1 && is_last) {
        float sum = 0;
        for (int w = 0; w <= last; ++w) sum += sums[w];
        *y = sum;
    }
}

__global__ void copy(const float* from, float* to) { to[threadIdx.x] = from[threadIdx.x]; }

__global__ void divide(int* to, int by) { to[threadIdx.x] = static_cast<int>(threadIdx.x) / by; }

__global__ void trap_at(int* to, int n) {
    if (threadIdx.x == n) __trap();
    to[threadIdx.x] = 1;
}

__global__ void wait_for(volatile int* flag, int value) {
    while (*flag != value) continue;
}

__global__ void __launch_bounds__(64) bounded(int* to) { to[threadIdx.x] = 1; }

}  // extern "C"
