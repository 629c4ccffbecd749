// Depthwise convolution: as many groups as channels. oneDNN has slow kernels, or only reference kernels, for gradients
// with windows larger than 3x3 or with dilation.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/ops/cpu/conv/conv_shape.h"
#include "lockstep/ops/cpu/conv/depthwise_kernels_table.h"
#include "lockstep/ops/cpu/isa.h"

namespace lockstep::cpu {

/// One shape's depthwise convolution, with any window, stride, padding and dilation. Activations are oneDNN's nChw8c
/// (avx2) or nChw16c (avx512) with zeros in the missing channels of the last block, aligned to 64 bytes; weights, bias
/// and their gradients are plain, at any address. The object is immutable: any thread may run it, and several at once
/// with separate scratch (64-byte aligned). Nothing is allocated. Bits depend only on shape and instruction set, not on
/// the number of threads.
class DepthwiseConv {
public:
    /// Whether `isa` has kernels for a valid shape.
    static bool supported(Isa isa, const ConvShape& shape);

    /// Throws InvalidArgument if not supported.
    DepthwiseConv(Isa isa, const ConvShape& shape);

    /// Enough for any of the three passes on this many OpenMP threads.
    std::size_t scratch_bytes(int threads) const;

    /// y = x * w + bias; bias may be null.
    void forward(const float* x, const float* w, const float* bias, float* y, void* scratch, int threads) const;
    void backward_data(const float* dy, const float* w, float* dx, void* scratch, int threads) const;
    /// Overwrites dw (c, 1, kh, kw) and, unless null, db (c).
    void backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch, int threads) const;

private:
    /// A DepthwisePass that owns its phases and taps.
    struct Pass {
        DepthwisePass sizes;
        std::vector<DepthwisePhase> phases;
        std::vector<DepthwiseTap> taps;

        DepthwisePass view() const;
    };
    static Pass make_forward(const ConvShape& shape);
    static Pass make_backward_data(const ConvShape& shape);

    const DepthwiseKernels* kernels_;
    DepthwiseSizes sizes_;
    Pass forward_, backward_data_;
};

}  // namespace lockstep::cpu
