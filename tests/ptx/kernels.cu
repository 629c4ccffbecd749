// Kernels for the self-check of the interpreter, as nvcc compiles them: each uses another part of the machine, and its
// test computes the same with loops. Their faulty relatives are in faults.cu.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

struct Affine {
    double factor;
    float offset;
    short power;
};

__constant__ float weights[4] = {0.5f, -1.5f, 2.25f, 8.0f};

// A call with a structure as argument and result.
__device__ __noinline__ Affine twice(Affine f) {
    f.offset += static_cast<float>(f.factor) * f.offset;
    f.factor *= f.factor;
    f.power = static_cast<short>(f.power + 1);
    return f;
}

extern "C" {

__global__ void grid_stride(float a, const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

__global__ void block_sums(const float* x, double* sums, int n) {
    __shared__ double of_warp[8];
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) sum += of_warp[w];
        sums[blockIdx.x] = sum;
    }
}

__global__ void histogram(const int* x, unsigned* counts, unsigned long long* total, int n) {
    __shared__ unsigned bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&bins[x[i] & 15], 1u);
        atomicAdd(total, static_cast<unsigned long long>(x[i]));
    }
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
}

__global__ void transpose(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[32][33];
    for (int r = threadIdx.y; r < 32; r += blockDim.y) {
        const int row = blockIdx.y * 32 + r, column = blockIdx.x * 32 + threadIdx.x;
        if (row < rows && column < columns) tile[r][threadIdx.x] = x[row * columns + column];
    }
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += blockDim.y) {
        const int row = blockIdx.x * 32 + r, column = blockIdx.y * 32 + threadIdx.x;
        if (row < columns && column < rows) y[row * rows + column] = tile[threadIdx.x][r];
    }
}

// Lanes leave the loop after different numbers of steps, and part again in it.
__global__ void collatz(const unsigned* x, unsigned* steps, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned value = x[i], count = 0;
    while (value != 1) {
        if (value % 2 == 0) {
            value /= 2;
        } else {
            value = 3 * value + 1;
        }
        ++count;
    }
    steps[i] = count;
}

__global__ void integers(const std::int64_t* a, const std::int64_t* b, std::int64_t* out) {
    const int i = threadIdx.x;
    const std::int64_t x = a[i], y = b[i];
    std::int64_t* to = out + i * 12;
    to[0] = x / y;
    to[1] = x % y;
    to[2] = __mul64hi(x, y);
    to[3] =
        static_cast<std::int64_t>(__umul64hi(static_cast<unsigned long long>(x), static_cast<unsigned long long>(y)));
    to[4] = __mulhi(static_cast<int>(x), static_cast<int>(y));
    to[5] = __popcll(static_cast<unsigned long long>(x));
    to[6] = __clzll(x);
    to[7] = static_cast<std::int64_t>(__brevll(static_cast<unsigned long long>(x)));
    to[8] = __funnelshift_l(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(i));
    to[9] = __byte_perm(static_cast<unsigned>(x), static_cast<unsigned>(y), 0x7152);
    to[10] = static_cast<short>(x) * static_cast<short>(y);
    to[11] = static_cast<std::int64_t>(static_cast<signed char>(x)) >> (i & 7);
}

__global__ void functions(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float* to = out + i * 8;
    to[0] = expf(x[i]);
    to[1] = logf(fabsf(x[i]));
    to[2] = sinf(x[i] * 1e5f);
    to[3] = powf(fabsf(x[i]), 0.7f);
    to[4] = tanhf(x[i]);
    to[5] = rsqrtf(fabsf(x[i]));
    to[6] = erff(x[i]);
    to[7] = __expf(x[i]);
}

__global__ void functions_f64(const double* x, double* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double* to = out + i * 6;
    to[0] = exp(x[i]);
    to[1] = log(fabs(x[i]));
    to[2] = pow(fabs(x[i]), 1.25);
    to[3] = tanh(x[i]);
    to[4] = x[i] / 3.0;
    to[5] = rint(x[i]);
}

__global__ void halves(const float* x, const float* y, std::uint16_t* out) {
    const int i = threadIdx.x;
    const __half a = __float2half(x[i]), b = __float2half(y[i]);
    const __nv_bfloat16 c = __float2bfloat16(x[i]), d = __float2bfloat16(y[i]);
    std::uint16_t* to = out + i * 8;
    to[0] = __half_as_ushort(a);
    to[1] = __half_as_ushort(a + b);
    to[2] = __half_as_ushort(a * b);
    to[3] = __half_as_ushort(__hfma(a, b, a));
    to[4] = __bfloat16_as_ushort(c);
    to[5] = __bfloat16_as_ushort(__hfma(c, d, d));
    const __half2 both = __hfma2(__halves2half2(a, b), __halves2half2(b, b), __halves2half2(a, a));
    to[6] = __half_as_ushort(__low2half(both));
    to[7] = __half_as_ushort(__high2half(both));
}

__global__ void vectors(const float4* x, float4* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = make_float4(x[i].w, x[i].z, x[i].y, x[i].x);
}

__global__ void calls_and_local(Affine f, const int* order, double* out) {
    double values[8];
    for (int i = 0; i < 8; ++i) {
        values[i] = f.factor * i + f.offset + weights[i & 3] + f.power;
        f = twice(f);
    }
    // Indexed at run time: in local memory.
    out[threadIdx.x] = values[order[threadIdx.x] & 7];
}

__global__ void warp_votes(const int* x, unsigned* out) {
    const int i = threadIdx.x;
    unsigned sum = static_cast<unsigned>(x[i]);
    for (int step = 1; step < 32; step *= 2) {
        const unsigned below = __shfl_up_sync(0xffffffffu, sum, step);
        if ((i & 31) >= step) sum += below;
    }
    out[i * 4] = sum;
    out[i * 4 + 1] = __ballot_sync(0xffffffffu, x[i] > 0);
    out[i * 4 + 2] = __any_sync(0xffffffffu, x[i] == 7) * 2 + __all_sync(0xffffffffu, x[i] >= 0);
    // Half warps exchange by themselves.
    unsigned own = sum;
    if ((i & 31) < 16) {
        own += __shfl_xor_sync(0x0000ffffu, sum, 3);
    } else {
        own += __shfl_sync(0xffff0000u, sum, 5, 16);
    }
    out[i * 4 + 3] = own;
}

__global__ void dynamic_shared(const int* x, int* y) {
    extern __shared__ int buffer[];
    buffer[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
}

// A warp's barrier orders memory between its lanes.
__global__ void warp_barrier(const int* x, int* y) {
    __shared__ int buffer[64];
    buffer[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = buffer[threadIdx.x ^ 9];
}

}  // extern "C"
