// Matrix products by cuBLASLt.
#include <fmt/format.h>

#include "lockstep/ops/cuda/channel_sums.h"
#include "lockstep/ops/cuda/gemm.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/internal/nn_operations.h"

namespace lockstep::cuda {

namespace {

/// The last two dimensions of `meta`.
Matrix matrix_of(const TensorMeta& meta) {
    const int dims = meta.shape.dims();
    Matrix m{meta.shape[dims - 2], meta.shape[dims - 1], meta.strides[dims - 2], meta.strides[dims - 1], 0};
    if (dims == 3) m.batch_stride = meta.strides[0];
    return m;
}

/// Asks for input `i` in a form that cuBLASLt supports; returns its matrix.
Matrix want_matrix(KernelRequest& request, std::size_t i) {
    if (request.in[i].opaque || !is_usable(matrix_of(request.in[i]))) request.want_contiguous(i);
    return matrix_of(request.in[i]);
}

std::shared_ptr<const Gemm> product(std::string_view name, const KernelRequest& request, const Matrix& a,
                                    const Matrix& b, std::int64_t batch, bool bias) {
    const DType dtype = request.out[0].dtype;
    if (!is_floating(dtype)) refuse_dtype(name, dtype);
    return std::make_shared<const Gemm>(request.device, dtype, a, b, matrix_of(request.out[0]), batch, bias,
                                        uses_tf32(request));
}

KernelPtr make_matmul(const MatMul& op, KernelRequest& request) {
    const Matrix a = want_matrix(request, 0);
    const Matrix b = want_matrix(request, 1);
    const TensorMeta& y = request.out[0];
    const auto gemm = product(op.name, request, a, b, y.shape.dims() == 3 ? y.shape[0] : 1, false);
    return make_cuda_kernel(
        request,
        [gemm](const Queue& queue, const KernelArgs& v) {
            gemm->run(queue, v.context.device, v.in[0], v.in[1], v.out[0], nullptr, v.scratch);
        },
        gemm->scratch_bytes());
}

bool is_plain(const LinearForward& op) { return op.activation == Activation::none; }

KernelPtr make_linear_forward(const LinearForward& op, KernelRequest& request) {
    const Matrix x = want_matrix(request, 0);
    const Matrix weight = want_matrix(request, 1);
    const bool bias = request.has_in(2);
    if (bias) request.want_contiguous(2);
    const auto gemm = product(operation_name(op), request, x, transposed(weight), 1, bias);
    return make_cuda_kernel(
        request,
        [gemm](const Queue& queue, const KernelArgs& v) {
            gemm->run(queue, v.context.device, v.in[0], v.in[1], v.out[0], v.in[2], v.scratch);
        },
        gemm->scratch_bytes());
}

KernelPtr make_linear_backward_data(const LinearBackwardData& op, KernelRequest& request) {
    const Matrix dy = want_matrix(request, 0);
    const Matrix weight = want_matrix(request, 1);
    const auto gemm = product(op.name, request, dy, weight, 1, false);
    return make_cuda_kernel(
        request,
        [gemm](const Queue& queue, const KernelArgs& v) {
            gemm->run(queue, v.context.device, v.in[0], v.in[1], v.out[0], nullptr, v.scratch);
        },
        gemm->scratch_bytes());
}

KernelPtr make_linear_backward_weights(const LinearBackwardWeights& op, KernelRequest& request) {
    const Matrix x = want_matrix(request, 0);
    request.want_contiguous(1);
    const Matrix dy = matrix_of(request.in[1]);
    const auto gemm = product(op.name, request, transposed(dy), x, 1, false);
    const bool bias = request.has_out(1);
    const ChannelLayout rows{dy.rows, dy.columns, 1};
    const DType dtype = request.out[0].dtype;
    // The two run one after the other and share the scratch.
    const std::size_t scratch = std::max(gemm->scratch_bytes(), bias ? channel_sums_scratch(rows) : 0);
    return make_cuda_kernel(
        request,
        [gemm, bias, rows, dtype](const Queue& queue, const KernelArgs& v) {
            gemm->run(queue, v.context.device, v.in[1], v.in[0], v.out[0], nullptr, v.scratch);
            if (bias) channel_sums(queue, dtype, rows, v.in[1], v.out[1], v.scratch);
        },
        scratch);
}

}  // namespace

void add_linear_kernels(KernelTable& table) {
    table.add<MatMul, make_matmul>();
    table.add<LinearForward, make_linear_forward, is_plain>();
    table.add<LinearBackwardData, make_linear_backward_data>();
    table.add<LinearBackwardWeights, make_linear_backward_weights>();
    table.add_half_types<MatMul, make_for_one_dtype<MatMul, make_matmul>>();
    table.add_half_types<LinearForward, make_for_one_dtype<LinearForward, make_linear_forward>, is_plain>();
    table.add_half_types<LinearBackwardData, make_for_one_dtype<LinearBackwardData, make_linear_backward_data>>();
    table.add_half_types<LinearBackwardWeights,
                         make_for_one_dtype<LinearBackwardWeights, make_linear_backward_weights>>();
}

}  // namespace lockstep::cuda
