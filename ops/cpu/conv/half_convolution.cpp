// Conv2d on images and weights in bf16: Winograd's kernels read and write bf16 and compute in f32, as fast as on f32
// and with half the memory. Other shapes, and f16, use the f32 kernels between conversions.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/ops/cpu/conv/winograd.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/internal/float16_rows.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

/// A bias or its gradient, which the kernels process in f32: a copy in scratch.
class HalfBias {
public:
    explicit HalfBias(const TensorMeta& meta) : elements_(meta.shape.empty() ? 0 : meta.numel()) {}

    std::size_t scratch_bytes() const {
        return round_up(static_cast<std::size_t>(elements_) * sizeof(float), scratch_alignment);
    }
    /// Null if it is missing.
    const float* read(const void* from, void* scratch) const {
        if (from == nullptr) return nullptr;
        auto* const to = static_cast<float*>(scratch);
        float16::upcast(static_cast<const BFloat16*>(from), to, elements_);
        return to;
    }
    void write(const float* made, void* to) const {
        if (to != nullptr) float16::downcast(made, static_cast<BFloat16*>(to), elements_);
    }

private:
    std::int64_t elements_;
};

/// x (N, C, H, W) with weights (K, C, 3, 3) under Winograd's rule (ConvEngine), on images in bf16.
class HalfWinograd {
public:
    /// Empty if the shape, the machine or the request's dtypes are not suitable.
    static std::optional<HalfWinograd> of(const Shape& x, const Shape& weights, const ConvGeometry& geometry,
                                          const KernelRequest& request) {
        const bool alike = geometry.is_dense() && geometry.pad_h == geometry.pad_w && geometry.stride_h == 1 &&
                           geometry.stride_w == 1 && weights[2] == 3 && weights[3] == 3;
        if (!alike || !of_bf16(request.in) || !of_bf16(request.out) || request.convolution == ConvAlgorithm::direct)
            return std::nullopt;
        const WinogradShape shape{x[0], x[1], x[2], x[3], weights[0], geometry.pad_h};
        for (const Isa isa : {Isa::avx512, Isa::avx2})
            if (isa <= allowed_isa() && WinogradConv::supported(isa, shape, DType::bf16))
                return HalfWinograd(isa, shape);
        return std::nullopt;
    }

    const WinogradConv& kernels() const { return kernels_; }
    void arrange_x(TensorMeta& meta) const { arrange_images(meta, kernels_.shape().c); }
    void arrange_y(TensorMeta& meta) const { arrange_images(meta, kernels_.shape().k); }

private:
    static bool of_bf16(ListRef<TensorMeta> operands) {
        return std::all_of(operands.begin(), operands.end(), [](const TensorMeta& meta) {
            return meta.shape.empty() || meta.dtype == DType::bf16;  // missing, or of that dtype
        });
    }

    HalfWinograd(Isa isa, const WinogradShape& shape)
        : kernels_(isa, shape, DType::bf16),
          tag_(isa_vector_width(isa) == 16 ? dnnl::memory::format_tag::nChw16c : dnnl::memory::format_tag::nChw8c) {}

    void arrange_images(TensorMeta& meta, std::int64_t channels) const {
        const Shape& s = meta.shape;
        arrange(meta, onednn::Desc({s[0], channels, s[2], s[3]}, dnnl::memory::data_type::bf16, tag_));
    }

    WinogradConv kernels_;
    dnnl::memory::format_tag tag_;
};

std::unique_ptr<Kernel> make_half_forward(const Conv2dForward& operation, KernelRequest& request) {
    const auto found = HalfWinograd::of(request.in[0].shape, request.in[1].shape, operation.geometry, request);
    if (!found) return nullptr;
    found->arrange_x(request.in[0]);
    found->arrange_y(request.out[0]);
    request.want_contiguous(1);
    request.want_contiguous(2);
    const HalfBias bias(request.in[2]);
    const bool relu = operation.activation == Activation::relu;
    return make_kernel(
        [conv = found->kernels(), bias, relu, threads = request.threads](const KernelArgs& call) {
            auto* const scratch = static_cast<char*>(call.scratch);
            conv.forward(call.in[0], call.in[1], bias.read(call.in[2], scratch), relu, call.out[0],
                         scratch + bias.scratch_bytes(), threads);
        },
        bias.scratch_bytes() + found->kernels().scratch_bytes(request.threads));
}

std::unique_ptr<Kernel> make_half_backward_data(const Conv2dBackwardData& operation, KernelRequest& request) {
    const auto found = HalfWinograd::of(request.out[0].shape, request.in[1].shape, operation.geometry, request);
    const bool masked = operation.made_x == Activation::relu;
    if (!found) return nullptr;
    found->arrange_y(request.in[0]);
    found->arrange_x(request.out[0]);
    if (masked) found->arrange_x(request.in[2]);
    request.want_contiguous(1);
    return make_kernel(
        [conv = found->kernels(), masked, threads = request.threads](const KernelArgs& call) {
            conv.backward_data(call.in[0], call.in[1], masked ? call.in[2] : nullptr, call.out[0], call.scratch,
                               threads);
        },
        found->kernels().scratch_bytes(request.threads));
}

std::unique_ptr<Kernel> make_half_backward_weights(const Conv2dBackwardWeights& operation, KernelRequest& request) {
    const auto found = HalfWinograd::of(request.in[0].shape, request.out[0].shape, operation.geometry, request);
    if (!found) return nullptr;
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    found->arrange_x(request.in[0]);
    found->arrange_y(request.in[1]);
    const HalfBias bias(request.out[1]);
    return make_kernel(
        [conv = found->kernels(), bias, threads = request.threads](const KernelArgs& call) {
            auto* const scratch = static_cast<char*>(call.scratch);
            float* const db = call.out[1] != nullptr ? reinterpret_cast<float*>(scratch) : nullptr;
            conv.backward_weights(call.in[0], call.in[1], call.out[0], db, scratch + bias.scratch_bytes(), threads);
            bias.write(db, call.out[1]);
        },
        bias.scratch_bytes() + found->kernels().scratch_bytes(request.threads));
}

}  // namespace

void add_half_convolution_kernels(KernelTable& table) {
    table.add_half_types<Conv2dForward, make_half_forward>();
    table.add_half_types<Conv2dBackwardData, make_half_backward_data>();
    table.add_half_types<Conv2dBackwardWeights, make_half_backward_weights>();
}

}  // namespace lockstep::cpu
