// Linear and MatMul of bf16 by oneDNN's matrix products, on processors with bf16 instructions (AVX512_BF16): products
// are added up in f32 and rounded once. On others, and for f16, f32 kernels run between conversions.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include "lockstep/ops/cpu/gemm.h"
#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/isa.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/onednn.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

using Dims = onednn::Dims;

bool multiplies_bf16() {
    __builtin_cpu_init();
    return allowed_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
}

/// Whether all operands are of bf16 and none is empty.
bool all_bf16(const KernelRequest& request) {
    const auto fits = [](const TensorMeta& meta) {
        return meta.shape.empty() || (meta.dtype == DType::bf16 && meta.numel() > 0);
    };
    return std::all_of(request.in.begin(), request.in.end(), fits) &&
           std::all_of(request.out.begin(), request.out.end(), fits);
}

onednn::Desc bf16_desc(const Dims& sizes, const Dims& strides) {
    return {sizes, dnnl::memory::data_type::bf16, strides};
}

/// c = a * b, plus a bias (1, n) if present.
class HalfProduct {
public:
    /// Empty if oneDNN has only its reference kernel.
    static std::optional<HalfProduct> of(const onednn::Desc& a, const onednn::Desc& b, const onednn::Desc& bias,
                                         const onednn::Desc& c, int threads) {
        const onednn::ThreadScope scope(threads);
        try {
            const bool biased = bias.get_size() != 0;
            const auto chosen = biased ? onednn::matmul(a, b, bias, c) : onednn::matmul(a, b, c);
            if (onednn::is_reference(chosen.impl_info_str())) return std::nullopt;
            return HalfProduct(chosen, a, b, bias, c);
        } catch (const dnnl::error&) {
            return std::nullopt;
        }
    }
    std::size_t scratch_bytes() const { return scratchpad_.get_size(); }
    void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const {
        const auto memory = [](const onednn::Desc& layout, const void* data) {
            return dnnl::memory(layout, onednn::cpu_engine(), const_cast<void*>(data));
        };
        std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, memory(a_, a)},
                                                        {DNNL_ARG_WEIGHTS, memory(b_, b)},
                                                        {DNNL_ARG_DST, memory(c_, c)},
                                                        {DNNL_ARG_SCRATCHPAD, memory(scratchpad_, scratch)}};
        if (bias_.get_size() != 0) arguments.emplace(DNNL_ARG_BIAS, memory(bias_, bias));
        primitive_.execute(onednn::cpu_stream(), arguments);
    }

private:
    HalfProduct(const dnnl::matmul::primitive_desc& chosen, const onednn::Desc& a, const onednn::Desc& b,
                const onednn::Desc& bias, const onednn::Desc& c)
        : primitive_(chosen), a_(a), b_(b), bias_(bias), c_(c), scratchpad_(chosen.scratchpad_desc()) {}

    dnnl::matmul primitive_;
    onednn::Desc a_, b_, bias_, c_, scratchpad_;
};

/// A matrix, or a stack of them, with its strides.
onednn::Desc bf16_desc_of(const TensorMeta& meta) {
    return bf16_desc(Dims(meta.shape.begin(), meta.shape.end()), Dims(meta.strides.begin(), meta.strides.end()));
}

bool is_row_major(const TensorMeta& meta) { return meta.opaque == nullptr && meta.is_contiguous(); }

std::unique_ptr<Kernel> make_half_matmul(const MatMul&, KernelRequest& request) {
    if (!multiplies_bf16() || !all_bf16(request) || !is_row_major(request.out[0])) return nullptr;
    for (const TensorMeta& meta : request.in) {
        const int dims = meta.shape.dims();
        if (meta.opaque != nullptr || !is_gemm_operand(meta.shape[dims - 2], meta.shape[dims - 1],
                                                       meta.strides[dims - 2], meta.strides[dims - 1]))
            return nullptr;
    }
    const auto product = HalfProduct::of(bf16_desc_of(request.in[0]), bf16_desc_of(request.in[1]), {},
                                         bf16_desc_of(request.out[0]), request.threads);
    if (!product) return nullptr;
    return make_kernel(
        [product = *product](const KernelArgs& call) {
            product.run(call.in[0], call.in[1], nullptr, call.out[0], call.scratch);
        },
        product->scratch_bytes());
}

std::unique_ptr<Kernel> make_half_linear_forward(const LinearForward& operation, KernelRequest& request) {
    if (!multiplies_bf16() || !all_bf16(request) || !is_row_major(request.out[0])) return nullptr;
    const std::int64_t rows = request.in[0].shape[0], in = request.in[0].shape[1], out = request.in[1].shape[0];
    const bool relu = operation.activation == Activation::relu;
    const onednn::Desc bias = request.has_in(2) ? bf16_desc({1, out}, {out, 1}) : onednn::Desc();
    const auto product = HalfProduct::of(bf16_desc({rows, in}, {in, 1}), bf16_desc({in, out}, {1, in}), bias,
                                         bf16_desc({rows, out}, {out, 1}), request.threads);
    if (!product) return nullptr;
    request.want_all_contiguous();
    return make_kernel(
        [product = *product, relu, elements = rows * out, threads = request.threads](const KernelArgs& call) {
            product.run(call.in[0], call.in[1], call.in[2], call.out[0], call.scratch);
            if (!relu) return;
            auto* const y = call.output<BFloat16>(0);
            for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                for_runs(end - begin, [&](std::ptrdiff_t first, std::ptrdiff_t count) {
                    float buffer[run_elements];
                    float16::upcast(y + begin + first, buffer, count);
                    run_unary(functor::Relu(), buffer, buffer, count);
                    float16::downcast(buffer, y + begin + first, count);
                });
            });
        },
        product->scratch_bytes());
}

std::unique_ptr<Kernel> make_half_linear_backward_data(const LinearBackwardData&, KernelRequest& request) {
    if (!multiplies_bf16() || !all_bf16(request) || !is_row_major(request.out[0])) return nullptr;
    const std::int64_t rows = request.in[0].shape[0], out = request.in[1].shape[0], in = request.in[1].shape[1];
    const auto product = HalfProduct::of(bf16_desc({rows, out}, {out, 1}), bf16_desc({out, in}, {in, 1}), {},
                                         bf16_desc({rows, in}, {in, 1}), request.threads);
    if (!product) return nullptr;
    request.want_all_contiguous();
    return make_kernel(
        [product = *product](const KernelArgs& call) {
            product.run(call.in[0], call.in[1], nullptr, call.out[0], call.scratch);
        },
        product->scratch_bytes());
}

std::unique_ptr<Kernel> make_half_linear_backward_weights(const LinearBackwardWeights&, KernelRequest& request) {
    const bool in_place = std::any_of(request.out.begin(), request.out.end(), [](const TensorMeta& meta) {
        return !meta.shape.empty() && !is_row_major(meta);
    });
    if (!multiplies_bf16() || !all_bf16(request) || in_place) return nullptr;
    const std::int64_t rows = request.in[0].shape[0], in = request.in[0].shape[1], out = request.in[1].shape[1];
    const auto product = HalfProduct::of(bf16_desc({out, rows}, {1, out}), bf16_desc({rows, in}, {in, 1}), {},
                                         bf16_desc({out, in}, {in, 1}), request.threads);
    if (!product) return nullptr;
    request.want_all_contiguous();
    const std::size_t sums = request.has_out(1) ? static_cast<std::size_t>(2 * out) * sizeof(float) : 0;
    const std::size_t before = round_up(sums, scratch_alignment);
    return make_kernel(
        [product = *product, before, rows, out](const KernelArgs& call) {
            auto* const scratch = static_cast<char*>(call.scratch);
            product.run(call.in[1], call.in[0], nullptr, call.out[0], scratch + before);
            if (call.out[1] == nullptr) return;
            float *const sum = reinterpret_cast<float*>(scratch), *const row = sum + out;
            std::fill_n(sum, out, 0.0F);
            for (std::int64_t i = 0; i < rows; ++i) {
                float16::upcast(call.input<BFloat16>(1) + i * out, row, out);
                binary_loops<float, functor::Add>()[0](sum, row, sum, out);
            }
            float16::downcast(sum, call.output<BFloat16>(1), out);
        },
        before + product->scratch_bytes());
}

}  // namespace

void add_half_linear_kernels(KernelTable& table) {
    table.add_half_types<MatMul, make_half_matmul>();
    table.add_half_types<LinearForward, make_half_linear_forward>();
    table.add_half_types<LinearBackwardData, make_half_linear_backward_data>();
    table.add_half_types<LinearBackwardWeights, make_half_linear_backward_weights>();
}

}  // namespace lockstep::cpu
