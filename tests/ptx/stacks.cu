// Kernels with what test_resources.cpp must find: an array in local memory, and registers that are spilled.

__global__ void indexes_an_array(const int* x, int* y) {
    int held[16] = {};
    for (int i = 0; i < 16; ++i) ++held[x[i * 32 + threadIdx.x] & 15];
    y[threadIdx.x] = held[y[threadIdx.x] & 15];
}

__global__ void __launch_bounds__(1024, 2) needs_many_registers(const float* x, float* y) {
    float held[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) held[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) y[i * 1024 + threadIdx.x] = held[63 - i] * held[i];
}

__global__ void has_no_stack(float* x) { x[threadIdx.x] *= 2; }
