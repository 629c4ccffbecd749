// The table through which winograd.cpp calls the kernels of one instruction set.
#pragma once

#include <cstddef>

namespace lockstep::cpu {

/// x (n, c, h, w), filters (k, c, 3, 3), stride 1, `pad` zeros on each side: output (n, k, out_h, out_w).
struct WinogradShape {
    std::ptrdiff_t n, c, h, w, k, pad;
    std::ptrdiff_t out_h() const { return h + 2 * pad - 2; }
    std::ptrdiff_t out_w() const { return w + 2 * pad - 2; }
};

/// Activations are nChw{V}c, filters and their gradients plain, all f32 or all bf16 depending on the table; bias and
/// its gradient f32. Scratch sizes are in floats, scratch is aligned to 64 bytes. `relu` and `made` as in winograd.h.
struct WinogradKernels {
    std::ptrdiff_t (*scratch_floats)(const WinogradShape&, int threads);
    void (*forward)(const WinogradShape&, const void* x, const void* w, const float* bias, bool relu, void* y,
                    float* scratch, int threads);
    void (*backward_data)(const WinogradShape&, const void* dy, const void* w, const void* made, void* dx,
                          float* scratch, int threads);
    void (*backward_weights)(const WinogradShape&, const void* x, const void* dy, void* dw, float* db, float* scratch,
                             int threads);
};

namespace avx2 {
extern const WinogradKernels winograd_kernels, winograd_kernels_bf16;
}
namespace avx512 {
extern const WinogradKernels winograd_kernels, winograd_kernels_bf16;
}

}  // namespace lockstep::cpu
