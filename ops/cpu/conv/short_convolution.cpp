// Conv2d on images in bf16: Winograd's kernels read and write them, with f32 between, at the speed that they have on
// f32 and half the memory. Other shapes, and f16, are left to the kernels for f32 between conversions.
#include <array>
#include <cstddef>
#include <optional>

#include "lockstep/ops/cpu/conv/winograd.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/short_floats.h"
#include "lockstep/ops/internal/convolution_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

/// Weights, bias or their gradient, which the kernels have in f32: a copy in scratch where the tensor is of bf16.
class FilterOperand {
public:
    explicit FilterOperand(const TensorMeta& meta)
        : elements_(meta.shape.empty() ? 0 : meta.numel()), short_(is_short_float(meta.dtype)) {}

    std::size_t scratch_bytes() const {
        return short_ ? (static_cast<std::size_t>(elements_) * sizeof(float) + 255) / 256 * 256 : 0;
    }
    /// Null where it is missing.
    const float* read(const void* from, void* scratch, int threads) const {
        if (!short_ || from == nullptr) return static_cast<const float*>(from);
        auto* const to = static_cast<float*>(scratch);
        for_element_parts(threads, elements_, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
            float16::widen(static_cast<const BFloat16*>(from) + begin, to + begin, end - begin);
        });
        return to;
    }
    /// Where what is to be written to `to` is made; then finish() brings it there.
    float* place(void* to, void* scratch) const { return static_cast<float*>(short_ && to != nullptr ? scratch : to); }
    void finish(const float* made, void* to, int threads) const {
        if (!short_ || to == nullptr) return;
        for_element_parts(threads, elements_, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
            float16::narrow(made + begin, static_cast<BFloat16*>(to) + begin, end - begin);
        });
    }

private:
    std::int64_t elements_;
    bool short_;
};

/// x (N, C, H, W) with weights (K, C, 3, 3) under Winograd's rule (ConvEngine), on images in bf16.
class ShortWinograd {
public:
    /// None where the shape, the machine or the request's dtypes are not for it.
    static std::optional<ShortWinograd> of(const Shape& x, const Shape& weights, const ConvGeometry& geometry,
                                           const KernelRequest& request) {
        const bool alike = geometry.pad_h == geometry.pad_w && geometry.stride_h == 1 && geometry.stride_w == 1 &&
                           weights[2] == 3 && weights[3] == 3;
        const bool of_bf16 = request.in[0].dtype == DType::bf16;
        if (!alike || !of_bf16 || request.convolution == ConvAlgorithm::direct) return std::nullopt;
        const WinogradShape shape{x[0], x[1], x[2], x[3], weights[0], geometry.pad_h};
        for (const Isa isa : {Isa::avx512, Isa::avx2})
            if (isa <= allowed_isa() && WinogradConv::supported(isa, shape, DType::bf16))
                return ShortWinograd(isa, shape);
        return std::nullopt;
    }

    const WinogradConv& kernels() const { return kernels_; }
    void arrange_x(TensorMeta& meta) const { arrange_images(meta, kernels_.shape().c); }
    void arrange_y(TensorMeta& meta) const { arrange_images(meta, kernels_.shape().k); }

private:
    ShortWinograd(Isa isa, const WinogradShape& shape)
        : kernels_(isa, shape, DType::bf16),
          tag_(isa_vector_width(isa) == 16 ? dnnl::memory::format_tag::nChw16c : dnnl::memory::format_tag::nChw8c) {}

    void arrange_images(TensorMeta& meta, std::int64_t channels) const {
        const Shape& s = meta.shape;
        arrange(meta, onednn::Desc({s[0], channels, s[2], s[3]}, dnnl::memory::data_type::bf16, tag_));
    }

    WinogradConv kernels_;
    dnnl::memory::format_tag tag_;
};

std::unique_ptr<Kernel> make_short_forward(const Conv2dForward& operation, KernelRequest& request) {
    const auto found = ShortWinograd::of(request.in[0].shape, request.in[1].shape, operation.geometry, request);
    if (!found || request.out[0].dtype != DType::bf16) return nullptr;
    found->arrange_x(request.in[0]);
    found->arrange_y(request.out[0]);
    request.want_contiguous(1);
    request.want_contiguous(2);
    const FilterOperand weights(request.in[1]), bias(request.in[2]);
    const bool relu = operation.activation == Activation::relu;
    const std::size_t parameters = weights.scratch_bytes() + bias.scratch_bytes();
    return make_kernel(
        [conv = found->kernels(), weights, bias, relu, parameters, threads = request.threads](const KernelArgs& call) {
            auto* const scratch = static_cast<char*>(call.scratch);
            const float* const w = weights.read(call.in[1], scratch, threads);
            const float* const b = bias.read(call.in[2], scratch + weights.scratch_bytes(), threads);
            conv.forward(call.in[0], w, b, relu, call.out[0], scratch + parameters, threads);
        },
        parameters + found->kernels().scratch_bytes(request.threads));
}

std::unique_ptr<Kernel> make_short_backward_data(const Conv2dBackwardData& operation, KernelRequest& request) {
    const auto found = ShortWinograd::of(request.out[0].shape, request.in[1].shape, operation.geometry, request);
    const bool masked = operation.made_x == Activation::relu;
    if (!found || request.out[0].dtype != DType::bf16 || (masked && request.in[2].dtype != DType::bf16)) return nullptr;
    found->arrange_y(request.in[0]);
    found->arrange_x(request.out[0]);
    if (masked) found->arrange_x(request.in[2]);
    request.want_contiguous(1);
    const FilterOperand weights(request.in[1]);
    return make_kernel(
        [conv = found->kernels(), weights, masked, threads = request.threads](const KernelArgs& call) {
            auto* const scratch = static_cast<char*>(call.scratch);
            const float* const w = weights.read(call.in[1], scratch, threads);
            conv.backward_data(call.in[0], w, masked ? call.in[2] : nullptr, call.out[0],
                               scratch + weights.scratch_bytes(), threads);
        },
        weights.scratch_bytes() + found->kernels().scratch_bytes(request.threads));
}

std::unique_ptr<Kernel> make_short_backward_weights(const Conv2dBackwardWeights& operation, KernelRequest& request) {
    const auto found = ShortWinograd::of(request.in[0].shape, request.out[0].shape, operation.geometry, request);
    if (!found || request.in[1].dtype != DType::bf16) return nullptr;
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    found->arrange_x(request.in[0]);
    found->arrange_y(request.in[1]);
    const FilterOperand weights(request.out[0]), bias(request.out[1]);
    const std::size_t parameters = weights.scratch_bytes() + bias.scratch_bytes();
    return make_kernel(
        [conv = found->kernels(), weights, bias, parameters, threads = request.threads](const KernelArgs& call) {
            auto* const scratch = static_cast<char*>(call.scratch);
            float* const dw = weights.place(call.out[0], scratch);
            float* const db = bias.place(call.out[1], scratch + weights.scratch_bytes());
            conv.backward_weights(call.in[0], call.in[1], dw, db, scratch + parameters, threads);
            weights.finish(dw, call.out[0], threads);
            bias.finish(db, call.out[1], threads);
        },
        parameters + found->kernels().scratch_bytes(request.threads));
}

}  // namespace

void add_short_convolution_kernels(KernelTable& table) {
    table.add_short_floats<Conv2dForward, make_short_forward>();
    table.add_short_floats<Conv2dBackwardData, make_short_backward_data>();
    table.add_short_floats<Conv2dBackwardWeights, make_short_backward_weights>();
}

}  // namespace lockstep::cpu
