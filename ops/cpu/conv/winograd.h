// 3x3 convolutions by Winograd F(4x4, 3x3) in f32 arithmetic: about three times the speed of direct ones.
#pragma once

#include <cstddef>

#include "lockstep/ops/cpu/conv/winograd_kernels.h"
#include "lockstep/ops/cpu/isa.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cpu {

/// One shape's convolution, stride 1. Activations are oneDNN's nChw8c (avx2) or nChw16c (avx512), aligned to 64 bytes;
/// weights and their gradients are plain (k, c, 3, 3) at any address. All of these are f32 or all bf16: bf16 is widened
/// when read and rounded when written. Everything in between is f32, as are bias and its gradient. The object is
/// immutable: any thread may run it, and several at once with separate scratch (64-byte aligned, contents undefined).
/// Nothing is allocated. Bits depend only on shape and instruction set, not on the number of threads. Relative L2 error
/// about 1e-6 (direct: 2e-7).
class WinogradConv {
public:
    /// Whether `isa` has kernels for this shape: n > 0, pad 0 to 2, output not empty, c and k multiples of
    /// isa_vector_width(isa), isa within machine_isa(), `stored` f32 or bf16.
    static bool supported(Isa isa, const WinogradShape& shape, DType stored = DType::f32);

    /// Throws InvalidArgument if not supported.
    WinogradConv(Isa isa, const WinogradShape& shape, DType stored = DType::f32);

    const WinogradShape& shape() const { return shape_; }
    /// Enough for any of the three passes on this many OpenMP threads.
    std::size_t scratch_bytes(int threads) const;

    /// y (n, k, out_h, out_w) = x * w + bias, then max(y, 0) if `relu`; bias (k) may be null.
    void forward(const void* x, const void* w, const float* bias, bool relu, void* y, void* scratch, int threads) const;
    /// dx (n, c, h, w) from dy. If x is the output of a ReLU, pass x as `made`: dx is then 0 where x <= 0. Otherwise
    /// null.
    void backward_data(const void* dy, const void* w, const void* made, void* dx, void* scratch, int threads) const;
    /// Overwrites dw (k, c, 3, 3) and, unless null, db (k).
    void backward_weights(const void* x, const void* dy, void* dw, float* db, void* scratch, int threads) const;

private:
    WinogradShape shape_;
    const WinogradKernels* kernels_;
};

}  // namespace lockstep::cpu
