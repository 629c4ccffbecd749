// MatMul and Linear. Weights and their gradients stay row-major, as in the arenas.
#include <algorithm>

#include "lockstep/ops/cpu/gemm.h"
#include "lockstep/ops/cpu/isa.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/relu.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

// ---- matmul -----------------------------------------------------------------------------------------------------

/// One operand of a product, two- or three-dimensional.
struct Stack {
    std::int64_t batch = 0, row = 0, column = 0;  // strides
};

Stack stack_of(const TensorMeta& meta) {
    const int dims = meta.shape.dims();
    return {dims == 3 ? meta.strides[0] : 0, meta.strides[dims - 2], meta.strides[dims - 1]};
}

void want_gemm_operand(KernelRequest& request, std::size_t input) {
    const TensorMeta& meta = request.in[input];
    const int dims = meta.shape.dims();
    if (meta.opaque != nullptr ||
        !is_gemm_operand(meta.shape[dims - 2], meta.shape[dims - 1], meta.strides[dims - 2], meta.strides[dims - 1]))
        request.want_contiguous(input);
}

std::unique_ptr<Kernel> make_matmul(const MatMul& operation, KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    if (request.in[1].dtype != dtype) unsupported_dtype(operation, request.in[1].dtype);
    want_gemm_operand(request, 0);
    want_gemm_operand(request, 1);
    require_contiguous_output(operation, request, 0);
    const Shape &a = request.in[0].shape, &b = request.in[1].shape;
    const int dims = a.dims();
    const std::int64_t batches = dims == 3 ? a[0] : 1, m = a[dims - 2], k = a[dims - 1], n = b[b.dims() - 1];
    const Stack left = stack_of(request.in[0]), right = stack_of(request.in[1]);
    return for_floating(operation, dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=](const KernelArgs& call) {
            for (std::int64_t i = 0; i < batches; ++i)
                gemm(m, n, k, Matrix<T>{call.input<T>(0) + i * left.batch, left.row, left.column},
                     Matrix<T>{call.input<T>(1) + i * right.batch, right.row, right.column},
                     call.output<T>(0) + i * m * n);
        });
    });
}

// ---- linear -----------------------------------------------------------------------------------------------------

/// Whether a product is computed without rearranging the weights, as oneDNN does. That pays off from a number of rows
/// on, and if sums are short: to add up the lanes of a register then takes as long as the sum.
bool has_few_rows(std::int64_t rows, std::int64_t in, std::int64_t out) {
    if (rows >= 8 && in <= 256 && out >= 32) return false;
    return rows <= (allowed_isa() == Isa::avx512 ? 64 : 32);
}

std::unique_ptr<Kernel> make_linear_forward(const LinearForward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const std::int64_t rows = request.in[0].shape[0], in = request.in[0].shape[1], out = request.in[1].shape[0];
    const bool bias = request.has_in(2), relu = operation.activation == Activation::relu;
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        if (has_few_rows(rows, in, out))
            return make_kernel([=, threads = request.threads](const KernelArgs& call) {
                constexpr std::int64_t multiplications = 16;  // in the time of a simple element
                for_parts(worthwhile_threads(threads, rows * in * out / multiplications), out, 16,
                          [&](std::int64_t begin, std::int64_t end) {
                              loops<T>().linear(call.input<T>(0), call.input<T>(1), bias ? call.input<T>(2) : nullptr,
                                                call.output<T>(0), rows, in, out, begin, end);
                              if (!relu) return;
                              for (std::int64_t row = 0; row < rows; ++row) {
                                  auto* part = call.output<T>(0) + row * out + begin;
                                  run_unary(functor::Relu(), part, part, end - begin);
                              }
                          });
            });
        return make_kernel([=, threads = request.threads](const KernelArgs& call) {
            auto* y = call.output<T>(0);
            if (bias)
                for (std::int64_t i = 0; i < rows; ++i) std::copy_n(call.input<T>(2), out, y + i * out);
            gemm(rows, out, in, Matrix<T>{call.input<T>(0), in, 1}, Matrix<T>{call.input<T>(1), 1, in}, y, bias);
            if (relu) relu_in_place(y, rows * out, threads);
        });
    });
}

std::unique_ptr<Kernel> make_linear_backward_data(const LinearBackwardData& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const std::int64_t rows = request.in[0].shape[0], out = request.in[1].shape[0], in = request.in[1].shape[1];
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=](const KernelArgs& call) {
            gemm(rows, in, out, Matrix<T>{call.input<T>(0), out, 1}, Matrix<T>{call.input<T>(1), in, 1},
                 call.output<T>(0));
        });
    });
}

std::unique_ptr<Kernel> make_linear_backward_weights(const LinearBackwardWeights& operation, KernelRequest& request) {
    request.want_all_contiguous();
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    const std::int64_t rows = request.in[0].shape[0], in = request.in[0].shape[1], out = request.in[1].shape[1];
    const bool bias = request.has_out(1);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=](const KernelArgs& call) {
            const T* dy = call.input<T>(1);
            gemm(out, in, rows, Matrix<T>{dy, 1, out}, Matrix<T>{call.input<T>(0), in, 1}, call.output<T>(0));
            if (!bias) return;
            auto* db = call.output<T>(1);
            std::fill_n(db, out, T(0));
            const auto add = binary_loops<T, functor::Add>()[0];
            for (std::int64_t i = 0; i < rows; ++i) add(db, dy + i * out, db, out);
        });
    });
}

}  // namespace

void add_linear_kernels(KernelTable& table) {
    table.add<MatMul, make_matmul>();
    table.add<LinearForward, make_linear_forward>();
    table.add<LinearBackwardData, make_linear_backward_data>();
    table.add<LinearBackwardWeights, make_linear_backward_weights>();
}

}  // namespace lockstep::cpu
