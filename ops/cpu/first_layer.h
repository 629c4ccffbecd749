// Convolutions of few input channels (a network's first layer), where oneDNN's weight gradient is slow.
#pragma once

#include <cstddef>

#include "lockstep/ops/cpu/first_layer_kernels_table.h"
#include "lockstep/ops/cpu/isa.h"

namespace lockstep {

/// One shape's convolution, 3x3 or 5x5, 1 to 4 input channels. x is plain nchw; y and dy are oneDNN's nChw8c (avx2) or
/// nChw16c (avx512), aligned to 64 bytes, with k padded by zeros to whole blocks as oneDNN does; weights and their
/// gradients are plain (k, c, kh, kw). The plan is constant: any thread may run it, many at once if each brings its
/// own scratch (64-byte aligned). Nothing is allocated. Bits depend on shape and instruction set only, not on the
/// number of threads.
class FirstLayerConv {
public:
    static bool supported(Isa isa, const FirstLayerShape& shape);

    /// Throws InvalidArgument when not supported.
    FirstLayerConv(Isa isa, const FirstLayerShape& shape);

    const FirstLayerShape& shape() const { return shape_; }
    /// Enough for either pass on any number of threads.
    std::size_t scratch_bytes() const;

    /// y = x * w + bias; bias (k) may be null. The padding of y is written too.
    void forward(const float* x, const float* w, const float* bias, float* y, void* scratch, int threads) const;
    /// dw (k, c, kh, kw) and, unless null, db (k) are overwritten.
    void backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch, int threads) const;

private:
    FirstLayerShape shape_;
    const FirstLayerKernels* kernels_;
};

}  // namespace lockstep
