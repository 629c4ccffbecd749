// Convolutions by cuDNN. Images lie channels last where cuDNN supports that; weights are row-major in their arena and
// are brought to cuDNN's order in scratch. Algorithms follow from the operation alone, never from a measurement, and
// are deterministic ones: not BWD_DATA_ALGO_0, BWD_FILTER_ALGO_0 or _3, which add with atomics.
#include <fmt/format.h>

#include <optional>

#include "lockstep/ops/cuda/factories.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/libraries.h"
#include "lockstep/ops/cuda/movement.h"
#include "lockstep/ops/cuda/sums.h"
#include "lockstep/runtime/error.h"

namespace lockstep::cuda {

namespace {

using TensorDescriptor = Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

/// Sizes of one convolution: x (N, C, H, W), w (K, C, kh, kw), y (N, K, OH, OW).
struct Sizes {
    Shape x, w, y;
    std::int64_t filter_bytes() const { return w.numel() * static_cast<std::int64_t>(sizeof(float)); }
};

int narrow(std::int64_t size) {
    if (size > std::int64_t{1} << 30)
        throw InvalidArgument(fmt::format(
            "conv2d: a dimension of {} elements is more than cuDNN takes; use a smaller batch or image", size));
    return static_cast<int>(size);
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// The descriptors of a convolution in one of the two layouts.
class Convolution {
public:
    Convolution(const Sizes& sizes, const ConvGeometry& g, bool channels_last)
        : sizes_(sizes),
          channels_last_(channels_last),
          x_("cudnnCreateTensorDescriptor"),
          y_("cudnnCreateTensorDescriptor"),
          w_("cudnnCreateFilterDescriptor"),
          convolution_("cudnnCreateConvolutionDescriptor") {
        const cudnnTensorFormat_t format = channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
        const auto set = [&](const TensorDescriptor& descriptor, const Shape& s) {
            check(cudnnSetTensor4dDescriptor(descriptor.get(), format, CUDNN_DATA_FLOAT, narrow(s[0]), narrow(s[1]),
                                             narrow(s[2]), narrow(s[3])),
                  "cudnnSetTensor4dDescriptor");
        };
        set(x_, sizes.x);
        set(y_, sizes.y);
        check(cudnnSetFilter4dDescriptor(w_.get(), CUDNN_DATA_FLOAT, format, narrow(sizes.w[0]), narrow(sizes.w[1]),
                                         narrow(sizes.w[2]), narrow(sizes.w[3])),
              "cudnnSetFilter4dDescriptor");
        check(cudnnSetConvolution2dDescriptor(convolution_.get(), g.pad_h, g.pad_w, g.stride_h, g.stride_w, 1, 1,
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
        // f32 means f32: the default would let cuDNN round the inputs to TF32, 10 bits of mantissa.
        check(cudnnSetConvolutionMathType(convolution_.get(), CUDNN_FMA_MATH), "cudnnSetConvolutionMathType");
    }

    cudnnTensorDescriptor_t x() const { return x_.get(); }
    cudnnTensorDescriptor_t y() const { return y_.get(); }
    cudnnFilterDescriptor_t w() const { return w_.get(); }
    cudnnConvolutionDescriptor_t get() const { return convolution_.get(); }
    bool channels_last() const { return channels_last_; }
    const Sizes& sizes() const { return sizes_; }

    /// Whether weights must be brought into another order for cuDNN.
    bool converts_weights() const { return channels_last_ && sizes_.w[1] > 1 && sizes_.w[2] * sizes_.w[3] > 1; }
    std::size_t weight_scratch() const {
        return converts_weights() ? aligned(static_cast<std::size_t>(sizes_.filter_bytes())) : 0;
    }
    /// Weights as cuDNN wants them: enqueues the conversion into scratch where needed.
    const float* weights(const Queue& queue, const float* rows, void* scratch) const {
        if (!converts_weights()) return rows;
        auto* converted = static_cast<float*>(scratch);
        copy_strided(queue, "filter_to_channels_last", sizes_.w, converted, channels_last_strides(sizes_.w), rows,
                     sizes_.w.contiguous_strides());
        return converted;
    }
    void store_weights(const Queue& queue, float* rows, const float* converted) const {
        copy_strided(queue, "filter_to_rows", sizes_.w, rows, sizes_.w.contiguous_strides(), converted,
                     channels_last_strides(sizes_.w));
    }

    void want(KernelRequest& request, std::size_t input) const {
        if (channels_last_)
            want_channels_last(request, input);
        else
            request.want_contiguous(input);
    }
    void lay_out(TensorMeta& out) const {
        if (channels_last_) lay_out_channels_last(out);
    }

private:
    Sizes sizes_;
    bool channels_last_;
    TensorDescriptor x_, y_;
    FilterDescriptor w_;
    ConvolutionDescriptor convolution_;
};

/// A convolution with the first combination of layout and algorithm that cuDNN has: channels last first.
template <class Algorithm>
struct Chosen {
    std::shared_ptr<const Convolution> convolution;
    Algorithm algorithm;
    std::size_t workspace;
};

/// `ask(handle, convolution, algorithm, &bytes)` is cuDNN's question for the workspace.
template <class Algorithm, class Ask>
Chosen<Algorithm> choose(const Sizes& sizes, const ConvGeometry& geometry, std::initializer_list<Algorithm> algorithms,
                         const char* question, Ask ask) {
    AskingDevice device;
    for (const bool channels_last : {true, false}) {
        auto convolution = std::make_shared<const Convolution>(sizes, geometry, channels_last);
        for (const Algorithm algorithm : algorithms) {
            std::size_t bytes = 0;
            if (is_supported(ask(device.libraries().dnn, *convolution, algorithm, &bytes), question))
                return {std::move(convolution), algorithm, bytes};
        }
    }
    throw DeviceError(
        fmt::format("cuDNN has no deterministic algorithm for a convolution of x {} with weights {}; "
                    "use other sizes",
                    sizes.x.str(), sizes.w.str()));
}

/// cuDNN's handle, working on `queue`.
class Session {
public:
    Session(const Queue& queue, const Invocation& v)
        : libraries_(libraries_of(v.launch.device)), lock_(libraries_.mutex) {
        check(cudnnSetStream(libraries_.dnn, queue.stream), "cudnnSetStream");
    }
    cudnnHandle_t handle() const { return libraries_.dnn; }

private:
    Libraries& libraries_;
    std::scoped_lock<std::mutex> lock_;
};

constexpr float one = 1;
constexpr float zero = 0;

void require_f32(const Operation& op, const KernelRequest& request) {
    if (request.out[0].dtype != DType::f32) refuse_dtype(op.name(), request.out[0].dtype);
}

bool is_empty(const Sizes& sizes) { return sizes.x.numel() == 0 || sizes.y.numel() == 0; }

/// A convolution without rows: gradients of weights are zero, and there is nothing else to write.
KernelPtr make_empty(const KernelRequest& request) {
    std::vector<std::size_t> bytes;
    for (const TensorMeta& out : request.out) bytes.push_back(out.bytes());
    return make_cuda_kernel(request, [bytes](const Queue& queue, const Invocation& v) {
        for (std::size_t i = 0; i < bytes.size(); ++i)
            if (bytes[i] > 0) check(cudaMemsetAsync(v.out[i], 0, bytes[i], queue.stream), "cudaMemsetAsync");
    });
}

void* behind(void* scratch, std::size_t bytes) { return static_cast<char*>(scratch) + bytes; }

}  // namespace

KernelPtr make_conv2d_forward(const Conv2dForward& op, KernelRequest& request) {
    require_f32(op, request);
    const Sizes sizes{request.in[0].shape, request.in[1].shape, request.out[0].shape};
    if (is_empty(sizes)) return make_empty(request);
    const auto chosen = choose(
        sizes, op.geometry,
        {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM},
        "cudnnGetConvolutionForwardWorkspaceSize",
        [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
            return cudnnGetConvolutionForwardWorkspaceSize(handle, c.x(), c.w(), c.get(), c.y(), algorithm, bytes);
        });
    const Convolution& convolution = *chosen.convolution;
    convolution.want(request, 0);
    request.want_contiguous(1);
    convolution.lay_out(request.out[0]);
    const bool bias = request.in.size() > 2 && request.in[2].shape.dims() == 1;
    if (bias) request.want_contiguous(2);
    return make_cuda_kernel(
        request,
        [chosen, bias](const Queue& queue, const Invocation& v) {
            const Convolution& c = *chosen.convolution;
            const Session session(queue, v);
            const float* w = c.weights(queue, v.input<float>(1), v.scratch);
            check(cudnnConvolutionForward(session.handle(), &one, c.x(), v.in[0], c.w(), w, c.get(), chosen.algorithm,
                                          behind(v.scratch, c.weight_scratch()), chosen.workspace, &zero, c.y(),
                                          v.out[0]),
                  "cudnnConvolutionForward");
            if (!bias) return;
            const Shape& y = c.sizes().y;
            add_bias(queue, v.output<float>(0), v.input<float>(2), y.numel(), y[1],
                     c.channels_last() ? 1 : y[2] * y[3]);
        },
        convolution.weight_scratch() + chosen.workspace);
}

KernelPtr make_conv2d_backward_data(const Conv2dBackwardData& op, KernelRequest& request) {
    require_f32(op, request);
    const Sizes sizes{request.out[0].shape, request.in[1].shape, request.in[0].shape};
    if (is_empty(sizes)) return make_empty(request);
    const auto chosen = choose(
        sizes, op.geometry, {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1}, "cudnnGetConvolutionBackwardDataWorkspaceSize",
        [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
            return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, c.w(), c.y(), c.get(), c.x(), algorithm, bytes);
        });
    const Convolution& convolution = *chosen.convolution;
    convolution.want(request, 0);
    request.want_contiguous(1);
    convolution.lay_out(request.out[0]);
    return make_cuda_kernel(
        request,
        [chosen](const Queue& queue, const Invocation& v) {
            const Convolution& c = *chosen.convolution;
            const Session session(queue, v);
            const float* w = c.weights(queue, v.input<float>(1), v.scratch);
            check(cudnnConvolutionBackwardData(session.handle(), &one, c.w(), w, c.y(), v.in[0], c.get(),
                                               chosen.algorithm, behind(v.scratch, c.weight_scratch()),
                                               chosen.workspace, &zero, c.x(), v.out[0]),
                  "cudnnConvolutionBackwardData");
        },
        convolution.weight_scratch() + chosen.workspace);
}

KernelPtr make_conv2d_backward_weights(const Conv2dBackwardWeights& op, KernelRequest& request) {
    require_f32(op, request);
    const Sizes sizes{request.in[0].shape, request.out[0].shape, request.in[1].shape};
    if (is_empty(sizes)) return make_empty(request);
    const auto chosen = choose(sizes, op.geometry, {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1},
                               "cudnnGetConvolutionBackwardFilterWorkspaceSize",
                               [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
                                   return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, c.x(), c.y(), c.get(),
                                                                                         c.w(), algorithm, bytes);
                               });
    const Convolution& convolution = *chosen.convolution;
    convolution.want(request, 0);
    convolution.want(request, 1);
    const bool bias = request.out.size() > 1;
    const Shape& y = sizes.y;
    const ChannelLayout channels = convolution.channels_last() ? ChannelLayout{y[0] * y[2] * y[3], y[1], 1}
                                                               : ChannelLayout{y[0], y[1], y[2] * y[3]};
    // The sums for the bias run after cuDNN and use its workspace.
    const std::size_t behind_weights = std::max(chosen.workspace, bias ? channel_sums_scratch(channels) : 0);
    return make_cuda_kernel(
        request,
        [chosen, bias, channels](const Queue& queue, const Invocation& v) {
            const Convolution& c = *chosen.convolution;
            const Session session(queue, v);
            void* workspace = behind(v.scratch, c.weight_scratch());
            float* dw = c.converts_weights() ? static_cast<float*>(v.scratch) : v.output<float>(0);
            check(cudnnConvolutionBackwardFilter(session.handle(), &one, c.x(), v.in[0], c.y(), v.in[1], c.get(),
                                                 chosen.algorithm, workspace, chosen.workspace, &zero, c.w(), dw),
                  "cudnnConvolutionBackwardFilter");
            if (c.converts_weights()) c.store_weights(queue, v.output<float>(0), dw);
            if (bias) channel_sums(queue, DType::f32, channels, v.in[1], v.out[1], workspace);
        },
        convolution.weight_scratch() + behind_weights);
}

}  // namespace lockstep::cuda
