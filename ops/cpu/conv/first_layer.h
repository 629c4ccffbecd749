// The weight gradient of a network's first layer, which oneDNN computes slowly on AVX2 (a tenth of the peak; on AVX-512
// it does well, and so do its forward kernels on both).
#pragma once

#include <cstddef>

#include "lockstep/ops/cpu/conv/first_layer_kernels_table.h"
#include "lockstep/ops/cpu/isa.h"

namespace lockstep::cpu {

/// One shape's 3x3 or 5x5 convolution of 1 to 4 input channels. x is plain nchw, dy oneDNN's nChw8c with k padded to
/// whole blocks, aligned to 64 bytes; the gradients are plain at any address. The object is immutable: any thread may
/// run it, and several at once with separate scratch (64-byte aligned). Nothing is allocated. Bits depend only on the
/// shape, not on the number of threads.
class FirstLayerGradient {
public:
    /// Whether to use this kernel on `isa`, which must be exactly avx2.
    static bool supported(Isa isa, const FirstLayerShape& shape);

    /// Throws InvalidArgument if not supported on avx2.
    explicit FirstLayerGradient(const FirstLayerShape& shape);

    /// Enough for any number of threads.
    std::size_t scratch_bytes() const;

    /// Overwrites dw (k, c, size, size) and, unless null, db (k).
    void backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch, int threads) const;

private:
    FirstLayerShape shape_;
};

}  // namespace lockstep::cpu
