// The table through which first_layer.cpp calls its kernels.
#pragma once

#include <cstddef>

namespace lockstep::cpu {

/// x (n, c, h, w), weights (k, c, size, size), `pad` zeros on each side, output (n, k, out_h, out_w).
struct FirstLayerShape {
    std::ptrdiff_t n, c, h, w, k, size, stride, pad;
    std::ptrdiff_t padded_h() const { return h + 2 * pad; }
    std::ptrdiff_t padded_w() const { return w + 2 * pad; }
    std::ptrdiff_t out_h() const { return (padded_h() - size) / stride + 1; }
    std::ptrdiff_t out_w() const { return (padded_w() - size) / stride + 1; }
};

struct FirstLayerKernels {
    std::ptrdiff_t (*scratch_floats)(const FirstLayerShape&);
    void (*backward_weights)(const FirstLayerShape&, const float* x, const float* dy, float* dw, float* db,
                             float* scratch, int threads);
};

namespace avx2 {
extern const FirstLayerKernels first_layer_kernels;
}

}  // namespace lockstep::cpu
