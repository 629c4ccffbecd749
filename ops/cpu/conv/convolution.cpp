// Conv2d: f32 by ConvEngine in the layouts that it selects, everything else by plain loops.
#include <cstring>
#include <optional>

#include "lockstep/ops/cpu/conv/conv_engine.h"
#include "lockstep/ops/cpu/conv/conv_trials.h"
#include "lockstep/ops/cpu/conv/plain_conv.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/relu.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

bool has_engine(const TensorMeta& x, const Shape& y) { return x.dtype == DType::f32 && x.numel() > 0 && y.numel() > 0; }

ConvEngine make_engine(const Shape& x, const Shape& weights, const ConvGeometry& geometry, bool bias,
                       const KernelRequest& request) {
    const ConvShape shape{x[0],
                          x[1],
                          x[2],
                          x[3],
                          weights[0],
                          weights[2],
                          weights[3],
                          {geometry.stride_h, geometry.stride_w},
                          {geometry.pad_h, geometry.pad_w},
                          bias,
                          {geometry.dilation_h, geometry.dilation_w},
                          geometry.groups};
    if (request.convolution == ConvAlgorithm::benchmark)
        return {shape, request.threads, allowed_isa(), benchmarked_algorithm(shape, request.threads, request.device)};
    return {shape, request.threads, allowed_isa(), request.convolution};
}

/// Activations that the engine reads: it needs them aligned, and a view of a plain tensor may begin anywhere.
class AlignedInput {
public:
    explicit AlignedInput(const TensorMeta& meta)
        : bytes_(static_cast<std::size_t>(meta.numel()) * sizeof(float)), any_(meta.opaque == nullptr) {}
    /// Scratch that run() may need.
    std::size_t scratch_bytes() const { return any_ ? round_up(bytes_, scratch_alignment) : 0; }
    const float* of(const float* input, void* scratch) const {
        if (!any_ || reinterpret_cast<std::uintptr_t>(input) % 64 == 0) return input;
        return static_cast<const float*>(std::memcpy(scratch, input, bytes_));
    }

private:
    std::size_t bytes_;
    bool any_;
};

/// Calls run(engine, call, aligned inputs..., scratch) with one or two activations as input.
template <class Pass>
class EngineKernel final : public Kernel {
public:
    EngineKernel(ConvEngine engine, const TensorMeta& first, std::optional<TensorMeta> second, Pass pass)
        : engine_(std::move(engine)), first_(first), pass_(pass) {
        if (second) second_.emplace(*second);
    }
    std::size_t scratch_bytes() const override { return copies() + engine_.scratch_bytes(); }
    void run(const KernelArgs& call) const override {
        auto* const scratch = static_cast<char*>(call.scratch);
        const float* first = first_.of(call.input<float>(0), scratch);
        const float* second = call.input<float>(1);
        if (second_) second = second_->of(second, scratch + first_.scratch_bytes());
        pass_(engine_, call, first, second, scratch + copies());
    }

private:
    std::size_t copies() const { return first_.scratch_bytes() + (second_ ? second_->scratch_bytes() : 0); }

    ConvEngine engine_;
    AlignedInput first_;
    std::optional<AlignedInput> second_;
    Pass pass_;
};

template <class Pass>
std::unique_ptr<Kernel> make_engine_kernel(ConvEngine engine, const TensorMeta& first, std::optional<TensorMeta> second,
                                           Pass pass) {
    return std::make_unique<EngineKernel<Pass>>(std::move(engine), first, std::move(second), pass);
}

std::unique_ptr<Kernel> make_forward(const Conv2dForward& operation, KernelRequest& request) {
    const bool relu = operation.activation == Activation::relu;
    const Shape x = request.in[0].shape, weights = request.in[1].shape, y = request.out[0].shape;
    const bool bias = request.has_in(2);
    request.want_contiguous(1);
    request.want_contiguous(2);
    if (has_engine(request.in[0], y)) {
        ConvEngine engine = make_engine(x, weights, operation.geometry, bias, request);
        arrange(request.in[0], engine.src_layout());
        arrange(request.out[0], engine.dst_layout());
        return make_engine_kernel(std::move(engine), request.in[0], std::nullopt,
                                  [relu](const ConvEngine& conv, const KernelArgs& call, const float* input,
                                         const float* filter, void* scratch) {
                                      conv.forward(input, filter, call.input<float>(2), relu, call.output<float>(0),
                                                   scratch);
                                  });
    }
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([conv = PlainConv(x, weights, y, operation.geometry), elements = y.numel(), relu,
                            threads = request.threads](const KernelArgs& call) {
            conv.forward(call.input<T>(0), call.input<T>(1), call.input<T>(2), call.output<T>(0), threads);
            if (relu) relu_in_place(call.output<T>(0), elements, threads);
        });
    });
}

std::unique_ptr<Kernel> make_backward_data(const Conv2dBackwardData& operation, KernelRequest& request) {
    const bool masked = operation.made_x == Activation::relu;
    const Shape y = request.in[0].shape, weights = request.in[1].shape, x = request.out[0].shape;
    request.want_contiguous(1);
    if (has_engine(request.out[0], y)) {
        ConvEngine engine = make_engine(x, weights, operation.geometry, false, request);
        arrange(request.in[0], engine.dst_layout());
        arrange(request.out[0], engine.src_layout());
        if (masked) arrange(request.in[2], engine.src_layout());
        return make_engine_kernel(std::move(engine), request.in[0], std::nullopt,
                                  [masked](const ConvEngine& conv, const KernelArgs& call, const float* gradient,
                                           const float* filter, void* scratch) {
                                      conv.backward_data(gradient, filter, masked ? call.input<float>(2) : nullptr,
                                                         call.output<float>(0), scratch);
                                  });
    }
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([conv = PlainConv(x, weights, y, operation.geometry), elements = x.numel(), masked,
                            threads = request.threads](const KernelArgs& call) {
            conv.backward_data(call.input<T>(0), call.input<T>(1), call.output<T>(0), threads);
            if (masked) relu_backward_in_place(call.output<T>(0), call.input<T>(2), elements, threads);
        });
    });
}

bool keeps_dtype(const Conv2dBackwardWeights& operation) { return !operation.widens; }

std::unique_ptr<Kernel> make_backward_weights(const Conv2dBackwardWeights& operation, KernelRequest& request) {
    const Shape x = request.in[0].shape, y = request.in[1].shape, weights = request.out[0].shape;
    const bool bias = request.has_out(1);
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    if (has_engine(request.in[0], y)) {
        ConvEngine engine = make_engine(x, weights, operation.geometry, bias, request);
        arrange(request.in[0], engine.src_layout());
        arrange(request.in[1], engine.dst_layout());
        return make_engine_kernel(std::move(engine), request.in[0], request.in[1],
                                  [](const ConvEngine& conv, const KernelArgs& call, const float* input,
                                     const float* gradient, void* scratch) {
                                      conv.backward_weights(input, gradient, call.output<float>(0),
                                                            call.output<float>(1), scratch);
                                  });
    }
    request.want_all_contiguous();
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([conv = PlainConv(x, weights, y, operation.geometry),
                            threads = request.threads](const KernelArgs& call) {
            conv.backward_weights(call.input<T>(0), call.input<T>(1), call.output<T>(0), call.output<T>(1), threads);
        });
    });
}

}  // namespace

void add_convolution_kernels(KernelTable& table) {
    table.add<Conv2dForward, make_forward>();
    table.add<Conv2dBackwardData, make_backward_data>();
    table.add<Conv2dBackwardWeights, make_backward_weights, keeps_dtype>();
}

}  // namespace lockstep::cpu
