// cuDNN: activations, softmax, element-wise operations and reductions.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tests/cuda_standin/cudnn_state.h"

namespace standin {
namespace {

using Values = std::vector<double>;

double derivative(const ActivationDesc& activation, double x, double y) {
    switch (activation.mode) {
        case CUDNN_ACTIVATION_SIGMOID: return y * (1 - y);
        case CUDNN_ACTIVATION_TANH: return 1 - y * y;
        case CUDNN_ACTIVATION_RELU: return x > 0 ? 1 : 0;
        case CUDNN_ACTIVATION_CLIPPED_RELU: return x > 0 && x < activation.coefficient ? 1 : 0;
        case CUDNN_ACTIVATION_ELU: return x > 0 ? 1 : activation.coefficient * std::exp(x);
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "this activation");
    }
}

// The tensor as rows to normalise, each contiguous: (N, C*H*W) by instance, (N*H*W, C) by channel.
Strided rows_of(const Strided& tensor, cudnnSoftmaxMode_t mode) {
    if (tensor.dims.size() != 4) refuse(cudaErrorNotSupported, Kind::unsupported, "softmax of other than 4 dimensions");
    return mode == CUDNN_SOFTMAX_MODE_CHANNEL ? tensor.permuted({0, 2, 3, 1}) : tensor;
}
std::size_t row_length(const Strided& tensor, cudnnSoftmaxMode_t mode) {
    return static_cast<std::size_t>(mode == CUDNN_SOFTMAX_MODE_CHANNEL ? tensor.dims[1]
                                                                       : tensor.count() / tensor.dims[0]);
}

void softmax(Values& values, std::size_t length, bool log) {
    for (std::size_t row = 0; row < values.size(); row += length) {
        double largest = -std::numeric_limits<double>::infinity();
        for (std::size_t i = row; i < row + length; ++i) largest = std::max(largest, values[i]);
        double sum = 0;
        for (std::size_t i = row; i < row + length; ++i) sum += std::exp(values[i] - largest);
        for (std::size_t i = row; i < row + length; ++i)
            values[i] = log ? values[i] - largest - std::log(sum) : std::exp(values[i] - largest) / sum;
    }
}

void softmax_backward(const Values& y, Values& dy, std::size_t length, bool log) {
    for (std::size_t row = 0; row < y.size(); row += length) {
        double sum = 0;
        for (std::size_t i = row; i < row + length; ++i) sum += log ? dy[i] : dy[i] * y[i];
        for (std::size_t i = row; i < row + length; ++i)
            dy[i] = log ? dy[i] - std::exp(y[i]) * sum : y[i] * (dy[i] - sum);
    }
}

double combine(cudnnOpTensorOp_t op, double a, double b) {
    switch (op) {
        case CUDNN_OP_TENSOR_ADD: return a + b;
        case CUDNN_OP_TENSOR_MUL: return a * b;
        case CUDNN_OP_TENSOR_MIN: return std::min(a, b);
        default: return std::max(a, b);
    }
}

double reduce_step(cudnnReduceTensorOp_t op, double sum, double value) {
    switch (op) {
        case CUDNN_REDUCE_TENSOR_MUL: return sum * value;
        case CUDNN_REDUCE_TENSOR_MIN: return std::min(sum, value);
        case CUDNN_REDUCE_TENSOR_MAX: return std::max(sum, value);
        case CUDNN_REDUCE_TENSOR_AMAX: return std::max(sum, std::fabs(value));
        case CUDNN_REDUCE_TENSOR_NORM1: return sum + std::fabs(value);
        case CUDNN_REDUCE_TENSOR_NORM2: return sum + value * value;
        default: return sum + value;
    }
}

double reduce_start(cudnnReduceTensorOp_t op) {
    switch (op) {
        case CUDNN_REDUCE_TENSOR_MUL: return 1;
        case CUDNN_REDUCE_TENSOR_MIN: return std::numeric_limits<double>::infinity();
        case CUDNN_REDUCE_TENSOR_MAX: return -std::numeric_limits<double>::infinity();
        default: return 0;
    }
}

Values reduce(cudnnReduceTensorOp_t op, const Strided& from, const Values& values, const Strided& to) {
    // A dense numbering of the result, broadcast to the input.
    Strided numbering{Scalar::f64, to.dims, packed_strides(to.dims)};
    Values numbers(static_cast<std::size_t>(to.count()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
    const Values target = load(numbering.broadcast(from.dims), numbers.data());
    Values result(numbers.size(), reduce_start(op));
    for (std::size_t i = 0; i < values.size(); ++i) {
        double& sum = result[static_cast<std::size_t>(target[i])];
        sum = reduce_step(op, sum, values[i]);
    }
    for (double& each : result) {
        if (op == CUDNN_REDUCE_TENSOR_NORM2) each = std::sqrt(each);
        if (op == CUDNN_REDUCE_TENSOR_AVG)
            each *= static_cast<double>(result.size()) / static_cast<double>(values.size());
    }
    return result;
}

constexpr std::size_t kReduceWorkspace = 768;

}  // namespace

double activate(const ActivationDesc& activation, double x) {
    if (std::isnan(x) && activation.propagate_nan) return x;
    switch (activation.mode) {
        case CUDNN_ACTIVATION_SIGMOID: return 1 / (1 + std::exp(-x));
        case CUDNN_ACTIVATION_TANH: return std::tanh(x);
        case CUDNN_ACTIVATION_RELU: return x > 0 ? x : 0;
        case CUDNN_ACTIVATION_CLIPPED_RELU: return x > 0 ? std::min(x, activation.coefficient) : 0;
        case CUDNN_ACTIVATION_ELU: return x > 0 ? x : activation.coefficient * std::expm1(x);
        default: return x;
    }
}

}  // namespace standin

using namespace standin;

extern "C" {

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t descriptor, const void* alpha,
                                     const cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                     const cudnnTensorDescriptor_t y_desc, void* y) {
    return cudnn_call("cudnnActivationForward", [&](Call& call) {
        const Strided xs = view_of(call, x_desc), ys = view_of(call, y_desc);
        check_same_dims(xs, ys, "x and y");
        const ActivationDesc activation = call.object<ActivationDesc>(descriptor);
        if (activation.mode > CUDNN_ACTIVATION_ELU) refuse(cudaErrorNotSupported, Kind::unsupported, "this activation");
        const double a = scaling(alpha, ys), b = scaling(beta, ys);
        enqueue(call, handle,
                [=] {
                    Values values = load(xs, x);
                    for (double& each : values) each = activate(activation, each);
                    store(ys, y, values, a, b);
                },
                {reads(x, xs), writes(y, ys)});
    });
}

cudnnStatus_t cudnnActivationBackward(cudnnHandle_t handle, cudnnActivationDescriptor_t descriptor, const void* alpha,
                                      const cudnnTensorDescriptor_t y_desc, const void* y,
                                      const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                      const cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                      const cudnnTensorDescriptor_t dx_desc, void* dx) {
    return cudnn_call("cudnnActivationBackward", [&](Call& call) {
        const Strided ys = view_of(call, y_desc), dys = view_of(call, dy_desc);
        const Strided xs = view_of(call, x_desc), dxs = view_of(call, dx_desc);
        check_same_dims(xs, ys, "x and y");
        check_same_dims(dys, ys, "dy and y");
        check_same_dims(dxs, xs, "dx and x");
        const ActivationDesc activation = call.object<ActivationDesc>(descriptor);
        derivative(activation, 0, 0);  // refuses functions without a derivative
        const double a = scaling(alpha, dxs), b = scaling(beta, dxs);
        enqueue(call, handle,
                [=] {
                    const Values before = load(xs, x), after = load(ys, y);
                    Values values = load(dys, dy);
                    for (std::size_t i = 0; i < values.size(); ++i)
                        values[i] *= derivative(activation, before[i], after[i]);
                    store(dxs, dx, values, a, b);
                },
                {reads(y, ys), reads(dy, dys), reads(x, xs), writes(dx, dxs)});
    });
}

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                  const void* alpha, const cudnnTensorDescriptor_t x_desc, const void* x,
                                  const void* beta, const cudnnTensorDescriptor_t y_desc, void* y) {
    return cudnn_call("cudnnSoftmaxForward", [&](Call& call) {
        const Strided xs = rows_of(view_of(call, x_desc), mode), ys = rows_of(view_of(call, y_desc), mode);
        const std::size_t length = row_length(view_of(call, x_desc), mode);
        check_same_dims(xs, ys, "x and y");
        const double a = scaling(alpha, ys), b = scaling(beta, ys);
        enqueue(call, handle,
                [=] {
                    Values values = load(xs, x);
                    softmax(values, length, algorithm == CUDNN_SOFTMAX_LOG);
                    store(ys, y, values, a, b);
                },
                {reads(x, xs), writes(y, ys)});
    });
}

cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                                   const void* alpha, const cudnnTensorDescriptor_t y_desc, const void* y,
                                   const cudnnTensorDescriptor_t dy_desc, const void* dy, const void* beta,
                                   const cudnnTensorDescriptor_t dx_desc, void* dx) {
    return cudnn_call("cudnnSoftmaxBackward", [&](Call& call) {
        const Strided ys = rows_of(view_of(call, y_desc), mode), dys = rows_of(view_of(call, dy_desc), mode);
        const Strided dxs = rows_of(view_of(call, dx_desc), mode);
        const std::size_t length = row_length(view_of(call, y_desc), mode);
        check_same_dims(dys, ys, "dy and y");
        check_same_dims(dxs, ys, "dx and y");
        const double a = scaling(alpha, dxs), b = scaling(beta, dxs);
        enqueue(call, handle,
                [=] {
                    Values values = load(dys, dy);
                    softmax_backward(load(ys, y), values, length, algorithm == CUDNN_SOFTMAX_LOG);
                    store(dxs, dx, values, a, b);
                },
                {reads(y, ys), reads(dy, dys), writes(dx, dxs)});
    });
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t a_desc,
                             const void* a, const void* beta, const cudnnTensorDescriptor_t c_desc, void* c) {
    return cudnn_call("cudnnAddTensor", [&](Call& call) {
        const Strided cs = view_of(call, c_desc), as = view_of(call, a_desc).broadcast(cs.dims);
        if (as.dims.empty()) refuse_shapes("A does not spread over C");
        const double scale = scaling(alpha, cs), keep = scaling(beta, cs);
        enqueue(call, handle, [=] { store(cs, c, load(as, a), scale, keep); }, {reads(a, as), writes(c, cs)});
    });
}

cudnnStatus_t cudnnTransformTensor(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc,
                                   const void* x, const void* beta, const cudnnTensorDescriptor_t y_desc, void* y) {
    return cudnn_call("cudnnTransformTensor", [&](Call& call) {
        const Strided xs = view_of(call, x_desc), ys = view_of(call, y_desc);
        check_same_dims(xs, ys, "x and y");
        const double a = scaling(alpha, ys), b = scaling(beta, ys);
        enqueue(call, handle, [=] { store(ys, y, load(xs, x), a, b); }, {reads(x, xs), writes(y, ys)});
    });
}

cudnnStatus_t cudnnOpTensor(cudnnHandle_t handle, const cudnnOpTensorDescriptor_t descriptor, const void* alpha1,
                            const cudnnTensorDescriptor_t a_desc, const void* a, const void* alpha2,
                            const cudnnTensorDescriptor_t b_desc, const void* b, const void* beta,
                            const cudnnTensorDescriptor_t c_desc, void* c) {
    return cudnn_call("cudnnOpTensor", [&](Call& call) {
        const Strided as = view_of(call, a_desc), cs = view_of(call, c_desc);
        const Strided bs = view_of(call, b_desc).broadcast(cs.dims);
        check_same_dims(as, cs, "A and C");
        if (bs.dims.empty()) refuse_shapes("B does not spread over C");
        const auto op = call.object<OpTensorDesc>(descriptor).op;
        if (op > CUDNN_OP_TENSOR_MAX) refuse(cudaErrorNotSupported, Kind::unsupported, "this operation on tensors");
        const double scale_a = scaling(alpha1, cs), scale_b = scaling(alpha2, cs), keep = scaling(beta, cs);
        enqueue(call, handle,
                [=] {
                    Values values = load(as, a);
                    const Values other = load(bs, b);
                    for (std::size_t i = 0; i < values.size(); ++i)
                        values[i] = combine(op, scale_a * values[i], scale_b * other[i]);
                    store(cs, c, values, 1, keep);
                },
                {reads(a, as), reads(b, bs), writes(c, cs)});
    });
}

cudnnStatus_t cudnnSetTensor(cudnnHandle_t handle, const cudnnTensorDescriptor_t y_desc, void* y, const void* value) {
    return cudnn_call("cudnnSetTensor", [&](Call& call) {
        const Strided ys = view_of(call, y_desc);
        const double set = load_scalar(ys.type, value, 0);
        enqueue(call, handle, [=] { store(ys, y, Values(static_cast<std::size_t>(ys.count()), set)); },
                {writes(y, ys)});
    });
}

cudnnStatus_t cudnnScaleTensor(cudnnHandle_t handle, const cudnnTensorDescriptor_t y_desc, void* y, const void* alpha) {
    return cudnn_call("cudnnScaleTensor", [&](Call& call) {
        const Strided ys = view_of(call, y_desc);
        const double scale = scaling(alpha, ys);
        enqueue(call, handle, [=] { store(ys, y, load(ys, y), scale); }, {writes(y, ys)});
    });
}

cudnnStatus_t cudnnGetReductionWorkspaceSize(cudnnHandle_t handle, const cudnnReduceTensorDescriptor_t descriptor,
                                             const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                             size_t* bytes) {
    return cudnn_call("cudnnGetReductionWorkspaceSize", [&](Call& call) {
        call.object<DnnHandle>(handle);
        call.object<ReduceDesc>(descriptor);
        *bytes = kReduceWorkspace;
    });
}

cudnnStatus_t cudnnGetReductionIndicesSize(cudnnHandle_t handle, const cudnnReduceTensorDescriptor_t descriptor,
                                           const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                           size_t* bytes) {
    return cudnn_call("cudnnGetReductionIndicesSize", [&](Call& call) {
        call.object<DnnHandle>(handle);
        call.object<ReduceDesc>(descriptor);
        *bytes = 0;
    });
}

cudnnStatus_t cudnnReduceTensor(cudnnHandle_t handle, const cudnnReduceTensorDescriptor_t descriptor, void*, size_t,
                                void* workspace, size_t workspace_size, const void* alpha,
                                const cudnnTensorDescriptor_t a_desc, const void* a, const void* beta,
                                const cudnnTensorDescriptor_t c_desc, void* c) {
    return cudnn_call("cudnnReduceTensor", [&](Call& call) {
        const Strided as = view_of(call, a_desc), cs = view_of(call, c_desc);
        if (cs.broadcast(as.dims).dims.empty()) refuse_shapes("C is not A with some dimensions reduced to 1");
        const auto op = call.object<ReduceDesc>(descriptor).op;
        if (op > CUDNN_REDUCE_TENSOR_NORM2) refuse(cudaErrorNotSupported, Kind::unsupported, "this reduction");
        const double scale = scaling(alpha, cs), keep = scaling(beta, cs);
        std::vector<Access> accesses{reads(a, as), writes(c, cs)};
        check_workspace(workspace, workspace_size, kReduceWorkspace, accesses);
        enqueue(
            call, handle, [=] { store(cs, c, reduce(op, as, load(as, a), cs), scale, keep); }, accesses);
    });
}

}  // extern "C"
