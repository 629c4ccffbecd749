// Convolutions by cuDNN. Weights are row-major in their arena; for channels-last images cuDNN reads them in another
// order, in which the kernels ask for them, and computes their gradients in that order, in scratch. The operation
// determines layouts and algorithms (conv_algorithms.h), or with trials the choices of its run. If cuDNN rejects an
// algorithm at run time that it reported as supported, the next one is used, finally in the other layout.
#include "lockstep/ops/cuda/channel_sums.h"
#include "lockstep/ops/cuda/conv_candidates.h"
#include "lockstep/ops/cuda/conv_trials.h"
#include "lockstep/ops/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

constexpr float one = 1;
constexpr float zero = 0;

// cuDNN's calls, with operands in the order of `Sizes`.
constexpr auto compute_y = [](cudnnHandle_t handle, const auto& way, const void* x, const void* w, void* y,
                              void* workspace) {
    const Convolution& c = *way.convolution;
    return cudnnConvolutionForward(handle, &one, c.x(), x, c.w(), w, c.get(), way.algorithm, workspace, way.workspace,
                                   &zero, c.y(), y);
};
constexpr auto compute_x = [](cudnnHandle_t handle, const auto& way, void* x, const void* w, const void* y,
                              void* workspace) {
    const Convolution& c = *way.convolution;
    return cudnnConvolutionBackwardData(handle, &one, c.w(), w, c.y(), y, c.get(), way.algorithm, workspace,
                                        way.workspace, &zero, c.x(), x);
};
constexpr auto compute_w = [](cudnnHandle_t handle, const auto& way, const void* x, void* w, const void* y,
                              void* workspace) {
    const Convolution& c = *way.convolution;
    return cudnnConvolutionBackwardFilter(handle, &one, c.x(), x, c.y(), y, c.get(), way.algorithm, workspace,
                                          way.workspace, &zero, c.w(), w);
};

/// Whether all operands have a dtype that cuDNN supports; f64 is rejected.
template <class Op>
bool is_for_cudnn(const Op& op, const KernelRequest& request) {
    if (request.out[0].dtype == DType::f64) refuse_dtype(operation_name(op), request.out[0].dtype);
    return has_one_dtype(request);
}
bool is_for_cudnn(const Conv2dBackwardWeights& op, const KernelRequest& request) {
    if (!op.widens) return is_for_cudnn<Conv2dBackwardWeights>(op, request);
    return request.out[0].dtype == DType::f32 && request.in[0].dtype == request.in[1].dtype && !request.has_out(1);
}

bool is_empty(const Sizes& sizes) { return sizes.x.numel() == 0 || sizes.y.numel() == 0; }

/// A convolution without rows: gradients of weights are zero, and there is nothing else to write.
KernelPtr make_empty(const KernelRequest& request) {
    std::vector<std::size_t> bytes;
    for (const TensorMeta& out : request.out) bytes.push_back(out.bytes());
    return make_cuda_kernel(request, [bytes](const Queue& queue, const KernelArgs& v) {
        for (std::size_t i = 0; i < bytes.size(); ++i)
            if (v.out[i] != nullptr && bytes[i] > 0)
                check(cudaMemsetAsync(v.out[i], 0, bytes[i], queue.stream), "cudaMemsetAsync");
    });
}

KernelPtr make_conv2d_forward(const Conv2dForward& op, KernelRequest& request) {
    if (!is_for_cudnn(op, request)) return nullptr;
    const Sizes sizes{request.in[0].shape, request.in[1].shape, request.out[0].shape, request.out[0].dtype};
    if (is_empty(sizes)) return make_empty(request);
    auto ways = list_candidates(
        request, sizes, op.geometry, forward_rule(request), "cudnnGetConvolutionForwardWorkspaceSize",
        [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
            return cudnnGetConvolutionForwardWorkspaceSize(handle, c.x(), c.w(), c.get(), c.y(), algorithm, bytes);
        });
    if (ways.empty()) return nullptr;
    put_chosen_first(ways, request, sizes, op.geometry, "forward", compute_y);
    const Convolution& first = *ways.front().convolution;
    first.want(request, 0);
    first.want_weights(request, 1);
    first.lay_out(request.out[0]);
    const bool bias = request.has_in(2);
    if (bias) request.want_contiguous(2);
    const std::size_t scratch = workspace_of(ways);
    return make_cuda_kernel(
        request,
        [ways = std::move(ways), bias, activation = op.activation](const Queue& queue, const KernelArgs& v) {
            const Session session(queue, v);
            run_first(ways, queue, v, Weights::read, "cudnnConvolutionForward", [&](const auto& way, CudnnCall& run) {
                const Convolution& c = *way.convolution;
                const void* w = run.weights(v.in[1]);
                const void* x = run.in(c.sizes().x, v.in[0]);
                void* y = run.out(c.sizes().y, v.out[0]);
                const cudnnStatus_t status = compute_y(session.handle(), way, x, w, y, run.workspace());
                if (status == CUDNN_STATUS_SUCCESS) run.store(c.sizes().y, v.out[0], y);
                return status;
            });
            if (!bias && activation == Activation::none) return;
            const Convolution& c = *ways.front().convolution;
            const Shape& y = c.sizes().y;
            add_bias(queue, c.sizes().dtype, v.out[0], v.in[2], activation, y.numel(), y[1],
                     c.channels_last() ? 1 : y[2] * y[3]);
        },
        scratch);
}

/// The gradient of an activation would need a separate pass over dx in any case.
bool takes_plain_x(const Conv2dBackwardData& op) { return op.made_x == Activation::none; }

KernelPtr make_conv2d_backward_data(const Conv2dBackwardData& op, KernelRequest& request) {
    if (!is_for_cudnn(op, request)) return nullptr;
    const Sizes sizes{request.out[0].shape, request.in[1].shape, request.in[0].shape, request.out[0].dtype};
    if (is_empty(sizes)) return make_empty(request);
    auto ways = list_candidates(
        request, sizes, op.geometry, backward_data_rule(request), "cudnnGetConvolutionBackwardDataWorkspaceSize",
        [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
            return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, c.w(), c.y(), c.get(), c.x(), algorithm, bytes);
        });
    if (ways.empty()) return nullptr;
    put_chosen_first(ways, request, sizes, op.geometry, "backward data", compute_x);
    const Convolution& first = *ways.front().convolution;
    first.want(request, 0);
    first.want_weights(request, 1);
    first.lay_out(request.out[0]);
    const std::size_t scratch = workspace_of(ways);
    return make_cuda_kernel(
        request,
        [ways = std::move(ways)](const Queue& queue, const KernelArgs& v) {
            const Session session(queue, v);
            run_first(ways, queue, v, Weights::read, "cudnnConvolutionBackwardData",
                      [&](const auto& way, CudnnCall& run) {
                          const Convolution& c = *way.convolution;
                          const void* w = run.weights(v.in[1]);
                          const void* dy = run.in(c.sizes().y, v.in[0]);
                          void* dx = run.out(c.sizes().x, v.out[0]);
                          const cudnnStatus_t status = compute_x(session.handle(), way, dx, w, dy, run.workspace());
                          if (status == CUDNN_STATUS_SUCCESS) run.store(c.sizes().x, v.out[0], dx);
                          return status;
                      });
        },
        scratch);
}

KernelPtr make_conv2d_backward_weights(const Conv2dBackwardWeights& op, KernelRequest& request) {
    if (!is_for_cudnn(op, request)) return nullptr;
    TensorMeta& computed = request.out[0];
    Sizes sizes{request.in[0].shape, computed.shape, request.in[1].shape, request.in[0].dtype, op.widens};
    if (is_empty(sizes)) return make_empty(request);
    const AlgorithmRule rule = backward_weights_rule(request);
    const FilterShape filter = FilterShape::of(computed.shape);
    // The order that the program asks for, if it is that of the first candidates.
    sizes.weights_last = !op.widens && rule.channels_last.front() && filter.channels > 1 && filter.taps > 1 &&
                         !computed.is_contiguous() && is_channels_last(computed);
    if (!sizes.weights_last) computed.strides = computed.shape.contiguous_strides();
    auto ways = list_candidates(request, sizes, op.geometry, rule, "cudnnGetConvolutionBackwardFilterWorkspaceSize",
                                [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
                                    return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, c.x(), c.y(), c.get(),
                                                                                          c.w(), algorithm, bytes);
                                });
    if (ways.empty()) return nullptr;
    put_chosen_first(ways, request, sizes, op.geometry, "backward weights", compute_w);
    const Convolution& first = *ways.front().convolution;
    first.want(request, 0);
    first.want(request, 1);
    const bool bias = request.has_out(1);
    const Shape& y = sizes.y;
    const ChannelLayout channels =
        first.channels_last() ? ChannelLayout{y[0] * y[2] * y[3], y[1], 1} : ChannelLayout{y[0], y[1], y[2] * y[3]};
    // The sums for the bias run after cuDNN and reuse its workspace.
    const std::size_t weights = first.converts_weights() ? first.weight_bytes() : 0;
    const std::size_t scratch = weights + std::max(workspace_of(ways), bias ? channel_sums_scratch(channels) : 0);
    return make_cuda_kernel(
        request,
        [ways = std::move(ways), bias, channels, weights](const Queue& queue, const KernelArgs& v) {
            const Session session(queue, v);
            run_first(ways, queue, v, Weights::computed, "cudnnConvolutionBackwardFilter",
                      [&](const auto& way, CudnnCall& run) {
                          const Convolution& c = *way.convolution;
                          const void* x = run.in(c.sizes().x, v.in[0]);
                          const void* dy = run.in(c.sizes().y, v.in[1]);
                          void* dw = c.converts_weights() ? run.scratch() : v.out[0];
                          const cudnnStatus_t status = compute_w(session.handle(), way, x, dw, dy, run.workspace());
                          if (status == CUDNN_STATUS_SUCCESS && c.converts_weights())
                              c.store_weights(run.queue(), v.out[0], dw);
                          return status;
                      });
            if (!bias) return;
            const Convolution& c = *ways.front().convolution;
            void* sums = behind(v.scratch, weights);
            channel_sums(queue, c.sizes().dtype, channels, v.in[1], v.out[1], sums);
        },
        scratch);
}

}  // namespace

void add_convolution_kernels(KernelTable& table) {
    table.add<Conv2dForward, make_conv2d_forward>();
    table.add<Conv2dBackwardData, make_conv2d_backward_data, takes_plain_x>();
    table.add<Conv2dBackwardWeights, make_conv2d_backward_weights>();
    table.add_half_types<Conv2dForward, make_conv2d_forward>();
    table.add_half_types<Conv2dBackwardData, make_conv2d_backward_data, takes_plain_x>();
    table.add_half_types<Conv2dBackwardWeights, make_conv2d_backward_weights>();
}

}  // namespace lockstep::cuda
