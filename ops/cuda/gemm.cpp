#include "lockstep/ops/cuda/gemm.h"

#include <numeric>

#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

constexpr std::size_t workspace_limit = std::size_t{32} << 20;
constexpr std::int64_t widest_alignment = 16;  // bytes; suits vector loads

bool is_by_rows(const Matrix& m) {
    return (m.columns == 1 || m.column_stride == 1) && (m.rows == 1 || m.row_stride >= m.columns);
}

cudaDataType_t data_type(DType dtype) {
    switch (dtype) {
        case DType::f64: return CUDA_R_64F;
        case DType::f16: return CUDA_R_16F;
        case DType::bf16: return CUDA_R_16BF;
        default: return CUDA_R_32F;
    }
}
/// Type of the sums of products, and of the scaling factors.
cudaDataType_t sum_type(DType dtype) { return dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F; }
cublasComputeType_t compute_type(DType dtype, bool tf32) {
    if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// Alignment of every shard's rows for any division of the batch: it depends only on the shape, and so does the
/// algorithm.
std::int64_t row_alignment(DType dtype, std::int64_t leading) {
    return std::gcd(leading * static_cast<std::int64_t>(size_of(dtype)), widest_alignment);
}

bool is_multiple_of(const void* address, std::uint32_t alignment) {
    return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

}  // namespace

Matrix transposed(const Matrix& m) { return {m.columns, m.rows, m.column_stride, m.row_stride, m.batch_stride}; }

bool is_usable(const Matrix& m) { return is_by_rows(m) || is_by_rows(transposed(m)); }

// cuBLASLt is column-major: a row-major matrix is its transpose there. The product is therefore d^T = b^T a^T.
Gemm::Side Gemm::stored(const Matrix& m) {
    if (is_by_rows(m)) return {CUBLAS_OP_N, m.columns, m.rows, m.rows == 1 ? m.columns : m.row_stride, m.batch_stride};
    return {CUBLAS_OP_T, m.rows, m.columns, m.columns == 1 ? m.rows : m.column_stride, m.batch_stride};
}

Gemm::Layout Gemm::layout(const Side& side, std::int64_t batch) const {
    // A layout must not be empty; nothing is computed with this one.
    const auto rows = static_cast<std::uint64_t>(std::max<std::int64_t>(1, side.rows));
    const auto columns = static_cast<std::uint64_t>(std::max<std::int64_t>(1, side.columns));
    Layout made("cublasLtMatrixLayoutCreate", data_type(dtype_), rows, columns,
                std::max(static_cast<std::int64_t>(rows), side.leading));
    if (batch > 1) {
        const auto count = static_cast<std::int32_t>(batch);
        check(cublasLtMatrixLayoutSetAttribute(made.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
              "cublasLtMatrixLayoutSetAttribute");
        check(cublasLtMatrixLayoutSetAttribute(made.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &side.batch_stride, sizeof side.batch_stride),
              "cublasLtMatrixLayoutSetAttribute");
    }
    return made;
}

Gemm::Gemm(Device device, DType dtype, const Matrix& a, const Matrix& b, const Matrix& d, std::int64_t batch, bool bias,
           bool tf32, const GemmResult& result)
    : dtype_(dtype),
      how_(result),
      empty_(batch * d.rows * d.columns == 0),
      zero_(a.columns == 0),
      result_bytes_(static_cast<std::size_t>(batch * d.rows * d.columns) * size_of(dtype)),
      alignment_(static_cast<std::uint32_t>(
          std::min({row_alignment(dtype, stored(a).leading), row_alignment(dtype, stored(b).leading),
                    row_alignment(dtype, stored(d).leading)}))),
      operation_("cublasLtMatmulDescCreate", compute_type(dtype, tf32), sum_type(dtype)),
      left_(layout(stored(b), batch)),
      right_(layout(stored(a), batch)),
      result_(layout(stored(d), batch)),
      bias_bytes_(bias ? static_cast<std::size_t>(d.columns) * size_of(dtype) : 0) {
    if (empty_ || zero_) return;
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
        check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value),
              "cublasLtMatmulDescSetAttribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, stored(b).operation);
    set(CUBLASLT_MATMUL_DESC_TRANSB, stored(a).operation);
    if (bias) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        // The algorithm is selected by the alignment of this pointer, and nothing is read through it; null would claim
        // the maximum alignment.
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(widest_alignment));
    }
    any_ = choose(device, static_cast<std::uint32_t>(size_of(dtype)));
    aligned_ = alignment_ > size_of(dtype) ? choose(device, alignment_) : any_;
    workspace_ = round_up(workspace_, scratch_alignment);
}

cublasLtMatmulAlgo_t Gemm::choose(Device device, std::uint32_t alignment) {
    const Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceCreate, cublasLtMatmulPreferenceDestroy>
        wishes("cublasLtMatmulPreferenceCreate");
    const auto wish = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        check(cublasLtMatmulPreferenceSetAttribute(wishes.get(), attribute, &value, sizeof value),
              "cublasLtMatmulPreferenceSetAttribute");
    };
    wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_limit);
    for (const auto side : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        wish(side, alignment);
    DeviceQuery query(device);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(query.libraries().blas, operation_.get(), left_.get(), right_.get(),
                                         result_.get(), result_.get(), wishes.get(), 1, &found, &count),
          "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0) check(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
    check(found.state, "cublasLtMatmulAlgoGetHeuristic");
    workspace_ = std::max(workspace_, found.workspaceSize);
    return found.algo;
}

void Gemm::run(const Queue& queue, Device device, const void* a, const void* b, void* d, const void* bias,
               void* scratch) const {
    if (empty_) return;
    if (zero_) {
        if (how_.adds) return;
        check(cudaMemsetAsync(d, 0, result_bytes_, queue.stream), "cudaMemsetAsync");
        return;
    }
    Libraries& libraries = libraries_of(device);
    const std::scoped_lock lock(mutex_);
    if (bias != nullptr && !is_multiple_of(bias, widest_alignment)) {  // eager, from the middle of a tensor
        void* copy = static_cast<char*>(scratch) + workspace_;
        check(cudaMemcpyAsync(copy, bias, bias_bytes_, cudaMemcpyDeviceToDevice, queue.stream), "cudaMemcpyAsync");
        bias = copy;
    }
    if (bias != nullptr)
        check(cublasLtMatmulDescSetAttribute(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
              "cublasLtMatmulDescSetAttribute");
    const double alpha = how_.factor, beta = how_.adds ? 1 : 0;
    const auto alpha_f32 = static_cast<float>(alpha), beta_f32 = static_cast<float>(beta);
    const bool wide = dtype_ == DType::f64;
    const bool aligned =
        is_multiple_of(a, alignment_) && is_multiple_of(b, alignment_) && is_multiple_of(d, alignment_);
    check(
        cublasLtMatmul(libraries.blas, operation_.get(), wide ? static_cast<const void*>(&alpha) : &alpha_f32, b,
                       left_.get(), a, right_.get(), wide ? static_cast<const void*>(&beta) : &beta_f32, d,
                       result_.get(), d, result_.get(), aligned ? &aligned_ : &any_, scratch, workspace_, queue.stream),
        "cublasLtMatmul");
}

}  // namespace lockstep::cuda
