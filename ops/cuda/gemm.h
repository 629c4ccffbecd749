// One matrix product, or a batch of equal ones, by cuBLASLt with an algorithm selected once for its shapes.
#pragma once

#include <mutex>

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/libraries.h"

namespace lockstep::cuda {

struct Matrix {
    std::int64_t rows, columns;
    std::int64_t row_stride, column_stride;  // in elements
    std::int64_t batch_stride;
};
Matrix transposed(const Matrix& m);
/// Whether one of the strides is 1, so that cuBLASLt can read it without a copy.
bool is_usable(const Matrix& m);

/// Factor of a product, and whether it is added to what d holds.
struct GemmResult {
    double factor = 1;
    bool adds = false;
};

/// d = factor * a b (+ d) (+ bias added to every row of d), all of one floating dtype. f32 is computed in f32, or with
/// `tf32` from operands that are rounded to TF32, which loses half of their digits. Products of f16 and bf16 are added
/// up in f32.
class Gemm {
public:
    /// For `device` and all others with the same hardware. `tf32`: allows TF32; for f32 only.
    Gemm(Device device, DType dtype, const Matrix& a, const Matrix& b, const Matrix& d, std::int64_t batch, bool bias,
         bool tf32, const GemmResult& result = {});

    std::size_t scratch_bytes() const { return workspace_ + bias_bytes_; }
    void run(const Queue& queue, Device device, const void* a, const void* b, void* d, const void* bias,
             void* scratch) const;

private:
    using Operation = Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescCreate, cublasLtMatmulDescDestroy>;
    using Layout = Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutCreate, cublasLtMatrixLayoutDestroy>;

    struct Side {
        cublasOperation_t operation;
        std::int64_t rows, columns, leading;  // as stored, column by column
        std::int64_t batch_stride;
    };
    static Side stored(const Matrix& m);
    Layout layout(const Side& side, std::int64_t batch) const;
    cublasLtMatmulAlgo_t choose(Device device, std::uint32_t alignment);

    DType dtype_;
    GemmResult how_;
    bool empty_;  // nothing to compute
    bool zero_;   // no inner elements: the result is zero
    std::size_t result_bytes_;
    std::uint32_t alignment_;
    Operation operation_;
    Layout left_, right_, result_;
    cublasLtMatmulAlgo_t aligned_{}, any_{};
    std::size_t workspace_ = 0;
    std::size_t bias_bytes_;    // part of scratch after the workspace, for an unaligned bias
    mutable std::mutex mutex_;  // the bias is part of the descriptor
};

}  // namespace lockstep::cuda
