// Convolutions by cuDNN. Images lie channels last where cuDNN supports that; weights are row-major in their arena and
// are brought to cuDNN's order in scratch. Algorithms follow from the operation alone, or where trials decide from
// those of its run, and are deterministic ones: not BWD_DATA_ALGO_0, BWD_FILTER_ALGO_0 or _3, which add with atomics.
// Where cuDNN refuses to run what it said it had, the next one is taken, in the end in the other layout.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "lockstep/ops/cuda/conv_trials.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/libraries.h"
#include "lockstep/ops/cuda/movement.h"
#include "lockstep/ops/cuda/stream_memory.h"
#include "lockstep/ops/cuda/sums.h"
#include "lockstep/ops/internal/convolution_operations.h"
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

/// One way to run a convolution: in one of the layouts, by one algorithm.
template <class Algorithm>
struct Way {
    std::shared_ptr<const Convolution> convolution;
    Algorithm algorithm;
    std::size_t workspace;
};

/// The ways that cuDNN says it has on `device`, in the order in which they are tried: channels last first. At least
/// one. `ask(handle, convolution, algorithm, &bytes)` is cuDNN's question for the workspace.
template <class Algorithm, class Ask>
std::vector<Way<Algorithm>> find_ways(Device device, const Sizes& sizes, const ConvGeometry& geometry,
                                      const std::vector<Algorithm>& algorithms, const char* question, Ask ask) {
    AskingDevice asking(device);
    std::vector<Way<Algorithm>> ways;
    for (const bool channels_last : {true, false}) {
        const auto convolution = std::make_shared<const Convolution>(sizes, geometry, channels_last);
        for (const Algorithm algorithm : algorithms) {
            std::size_t bytes = 0;
            if (is_supported(ask(asking.libraries().dnn, *convolution, algorithm, &bytes), question))
                ways.push_back({convolution, algorithm, bytes});
        }
    }
    if (ways.empty())
        throw DeviceError(
            fmt::format("cuDNN has no deterministic algorithm for a convolution of x {} with weights {}; "
                        "use other sizes",
                        sizes.x.str(), sizes.w.str()));
    return ways;
}

/// Workspace for every way in the layout of the first one, which is that of the kernel.
template <class Algorithm>
std::size_t workspace_of(const std::vector<Way<Algorithm>>& ways) {
    std::size_t most = 0;
    for (const auto& way : ways)
        if (way.convolution == ways.front().convolution) most = std::max(most, way.workspace);
    return most;
}

/// cuDNN's handle, working on `queue`.
class Session {
public:
    Session(const Queue& queue, const KernelArgs& v)
        : libraries_(libraries_of(v.launch.device)), lock_(libraries_.mutex) {
        check(cudnnSetStream(libraries_.dnn, queue.stream), "cudnnSetStream");
    }
    cudnnHandle_t handle() const { return libraries_.dnn; }

private:
    Libraries& libraries_;
    std::scoped_lock<std::mutex> lock_;
};

void* behind(void* memory, std::size_t bytes) { return static_cast<char*>(memory) + bytes; }

/// The memory of one run: scratch begins with room for the weights in cuDNN's order, and the workspace lies after it.
/// In the layout that the kernel was not made for, which is needed where cuDNN refuses the other one when it comes to
/// running, it is memory of its own, and images are copied there and back.
class Run {
public:
    Run(const Queue& queue, void* scratch, const Convolution& made_for, const Convolution& way, std::size_t workspace)
        : way_(way), scratch_(scratch), queue_(queue) {
        if (way.channels_last() == made_for.channels_last()) return;
        const std::size_t before = way.weight_scratch() + aligned(workspace);
        const std::size_t bytes = before + image_bytes(way.sizes().x) + image_bytes(way.sizes().y);
        own_.emplace(queue.stream, bytes);
        scratch_ = own_->data();
        images_ = behind(scratch_, before);
        touched_.assign(queue.touched.begin(), queue.touched.end());
        touched_.push_back({scratch_, bytes, true});
        queue_.touched = touched_;
    }

    const Queue& queue() const { return queue_; }
    void* scratch() const { return scratch_; }
    void* workspace() const { return behind(scratch_, way_.weight_scratch()); }
    /// An image that is read.
    const void* in(const Shape& shape, const void* given) {
        if (!own_) return given;
        float* copy = next_image(shape);
        copy_strided(queue_, "image_to_other_layout", shape, copy, strides(shape, way_.channels_last()),
                     static_cast<const float*>(given), strides(shape, !way_.channels_last()));
        return copy;
    }
    /// An image that is written: what lies there is brought to `given` by `store`.
    void* out(const Shape& shape, void* given) { return own_ ? next_image(shape) : given; }
    void store(const Shape& shape, void* given, const void* written) const {
        if (!own_) return;
        copy_strided(queue_, "image_from_other_layout", shape, static_cast<float*>(given),
                     strides(shape, !way_.channels_last()), static_cast<const float*>(written),
                     strides(shape, way_.channels_last()));
    }

private:
    static std::size_t image_bytes(const Shape& shape) {
        return aligned(static_cast<std::size_t>(shape.numel()) * sizeof(float));
    }
    static Shape strides(const Shape& shape, bool channels_last) {
        return channels_last ? channels_last_strides(shape) : shape.contiguous_strides();
    }
    float* next_image(const Shape& shape) {
        void* image = images_;
        images_ = behind(images_, image_bytes(shape));
        return static_cast<float*>(image);
    }

    const Convolution& way_;
    void* scratch_;
    void* images_ = nullptr;
    std::optional<StreamMemory> own_;
    std::vector<Touched> touched_;
    Queue queue_;
};

/// Calls `perform(way, run)` for one way after the other until cuDNN does not refuse it: the questions that were asked
/// when the kernel was made may have been answered with too much. The order is fixed, and so is the result.
template <class Algorithm, class Perform>
void run_first(const std::vector<Way<Algorithm>>& ways, const Queue& queue, const KernelArgs& v, const char* call,
               Perform perform) {
    for (const auto& way : ways) {
        Run run(queue, v.scratch, *ways.front().convolution, *way.convolution, way.workspace);
        const cudnnStatus_t status = perform(way, run);
        if (&way == &ways.back()) check(status, call);
        if (is_supported(status, call)) return;
    }
}

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

template <class Op>
void require_f32(const Op& op, const KernelRequest& request) {
    if (request.out[0].dtype != DType::f32) refuse_dtype(operation_name(op), request.out[0].dtype);
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
    require_f32(op, request);
    const Sizes sizes{request.in[0].shape, request.in[1].shape, request.out[0].shape};
    if (is_empty(sizes)) return make_empty(request);
    auto ways = find_ways(
        request.device, sizes, op.geometry, forward_algorithms(request), "cudnnGetConvolutionForwardWorkspaceSize",
        [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
            return cudnnGetConvolutionForwardWorkspaceSize(handle, c.x(), c.w(), c.get(), c.y(), algorithm, bytes);
        });
    put_chosen_first(ways, request, sizes, op.geometry, "forward", compute_y);
    const Convolution& first = *ways.front().convolution;
    first.want(request, 0);
    request.want_contiguous(1);
    first.lay_out(request.out[0]);
    const bool bias = request.has_in(2);
    if (bias) request.want_contiguous(2);
    const std::size_t scratch = first.weight_scratch() + workspace_of(ways);
    return make_cuda_kernel(
        request,
        [ways = std::move(ways), bias, activation = op.activation](const Queue& queue, const KernelArgs& v) {
            const Session session(queue, v);
            run_first(ways, queue, v, "cudnnConvolutionForward", [&](const auto& way, Run& run) {
                const Convolution& c = *way.convolution;
                const float* w = c.weights(run.queue(), v.input<float>(1), run.scratch());
                const void* x = run.in(c.sizes().x, v.in[0]);
                void* y = run.out(c.sizes().y, v.out[0]);
                const cudnnStatus_t status = compute_y(session.handle(), way, x, w, y, run.workspace());
                if (status == CUDNN_STATUS_SUCCESS) run.store(c.sizes().y, v.out[0], y);
                return status;
            });
            if (!bias && activation == Activation::none) return;
            const Convolution& c = *ways.front().convolution;
            const Shape& y = c.sizes().y;
            add_bias(queue, v.output<float>(0), v.input<float>(2), activation, y.numel(), y[1],
                     c.channels_last() ? 1 : y[2] * y[3]);
        },
        scratch);
}

/// The gradient of an activation would be a pass of its own over dx in any case.
bool takes_plain_x(const Conv2dBackwardData& op) { return op.made_x == Activation::none; }

KernelPtr make_conv2d_backward_data(const Conv2dBackwardData& op, KernelRequest& request) {
    require_f32(op, request);
    const Sizes sizes{request.out[0].shape, request.in[1].shape, request.in[0].shape};
    if (is_empty(sizes)) return make_empty(request);
    auto ways = find_ways(request.device, sizes, op.geometry, backward_data_algorithms(request),
                          "cudnnGetConvolutionBackwardDataWorkspaceSize",
                          [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
                              return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, c.w(), c.y(), c.get(), c.x(),
                                                                                  algorithm, bytes);
                          });
    put_chosen_first(ways, request, sizes, op.geometry, "backward data", compute_x);
    const Convolution& first = *ways.front().convolution;
    first.want(request, 0);
    request.want_contiguous(1);
    first.lay_out(request.out[0]);
    const std::size_t scratch = first.weight_scratch() + workspace_of(ways);
    return make_cuda_kernel(
        request,
        [ways = std::move(ways)](const Queue& queue, const KernelArgs& v) {
            const Session session(queue, v);
            run_first(ways, queue, v, "cudnnConvolutionBackwardData", [&](const auto& way, Run& run) {
                const Convolution& c = *way.convolution;
                const float* w = c.weights(run.queue(), v.input<float>(1), run.scratch());
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
    require_f32(op, request);
    const Sizes sizes{request.in[0].shape, request.out[0].shape, request.in[1].shape};
    if (is_empty(sizes)) return make_empty(request);
    auto ways = find_ways(request.device, sizes, op.geometry, backward_weights_algorithms(request),
                          "cudnnGetConvolutionBackwardFilterWorkspaceSize",
                          [](cudnnHandle_t handle, const Convolution& c, auto algorithm, auto* bytes) {
                              return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, c.x(), c.y(), c.get(),
                                                                                    c.w(), algorithm, bytes);
                          });
    put_chosen_first(ways, request, sizes, op.geometry, "backward weights", compute_w);
    const Convolution& first = *ways.front().convolution;
    first.want(request, 0);
    first.want(request, 1);
    const bool bias = request.has_out(1);
    const Shape& y = sizes.y;
    const ChannelLayout channels =
        first.channels_last() ? ChannelLayout{y[0] * y[2] * y[3], y[1], 1} : ChannelLayout{y[0], y[1], y[2] * y[3]};
    // The sums for the bias run after cuDNN and use its workspace.
    const std::size_t scratch =
        first.weight_scratch() + std::max(workspace_of(ways), bias ? channel_sums_scratch(channels) : 0);
    return make_cuda_kernel(
        request,
        [ways = std::move(ways), bias, channels](const Queue& queue, const KernelArgs& v) {
            const Session session(queue, v);
            run_first(ways, queue, v, "cudnnConvolutionBackwardFilter", [&](const auto& way, Run& run) {
                const Convolution& c = *way.convolution;
                const void* x = run.in(c.sizes().x, v.in[0]);
                const void* dy = run.in(c.sizes().y, v.in[1]);
                float* dw = c.converts_weights() ? static_cast<float*>(run.scratch()) : v.output<float>(0);
                const cudnnStatus_t status = compute_w(session.handle(), way, x, dw, dy, run.workspace());
                if (status == CUDNN_STATUS_SUCCESS && c.converts_weights())
                    c.store_weights(run.queue(), v.output<float>(0), dw);
                return status;
            });
            if (!bias) return;
            void* sums = behind(v.scratch, ways.front().convolution->weight_scratch());
            channel_sums(queue, DType::f32, channels, v.in[1], v.out[1], sums);
        },
        scratch);
}

}  // namespace

void add_convolution_kernels(KernelTable& table) {
    table.add<Conv2dForward, make_conv2d_forward>();
    table.add<Conv2dBackwardData, make_conv2d_backward_data, takes_plain_x>();
    table.add<Conv2dBackwardWeights, make_conv2d_backward_weights>();
}

}  // namespace lockstep::cuda
