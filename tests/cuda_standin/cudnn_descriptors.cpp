// cuDNN: handles, descriptors, and names of status codes.
#include <algorithm>

#include "lockstep/tests/cuda_standin/cudnn_state.h"

namespace standin {

cudnnStatus_t cudnn_status(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return CUDNN_STATUS_SUCCESS;
        case cudaErrorInvalidValue:
        case cudaErrorInvalidResourceHandle: return CUDNN_STATUS_BAD_PARAM;
        case cudaErrorNotSupported: return CUDNN_STATUS_NOT_SUPPORTED;
        case cudaErrorMemoryAllocation: return CUDNN_STATUS_ALLOC_FAILED;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver: return CUDNN_STATUS_NOT_INITIALIZED;
        default: return CUDNN_STATUS_EXECUTION_FAILED;
    }
}

Scalar scalar_of(cudnnDataType_t type) {
    switch (type) {
        case CUDNN_DATA_FLOAT: return Scalar::f32;
        case CUDNN_DATA_DOUBLE: return Scalar::f64;
        case CUDNN_DATA_HALF: return Scalar::f16;
        case CUDNN_DATA_BFLOAT16: return Scalar::bf16;
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "an element type without reference loops");
    }
}

namespace {

const Strided& set_view(const Strided& view) {
    if (view.dims.empty())
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a descriptor was created but never set");
    return view;
}

// Strides of dims (N, C, spatial…) in memory order NCHW or NHWC.
std::vector<std::int64_t> strides_of(cudnnTensorFormat_t format, const std::vector<std::int64_t>& dims) {
    if (format == CUDNN_TENSOR_NCHW) return packed_strides(dims);
    if (format != CUDNN_TENSOR_NHWC) refuse(cudaErrorNotSupported, Kind::unsupported, "a vectorised layout");
    std::vector<std::int64_t> strides(dims.size());
    strides[1] = 1;
    std::int64_t step = dims[1];
    for (std::size_t d = dims.size(); d-- > 2;) {
        strides[d] = step;
        step *= dims[d];
    }
    strides[0] = step;
    return strides;
}

std::vector<std::int64_t> numbers(const int* values, int count) {
    if (values == nullptr || count <= 0 || count > CUDNN_DIM_MAX)
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the number of dimensions");
    return {values, values + count};
}

void check_at_least(const std::vector<std::int64_t>& values, std::int64_t smallest, const char* what) {
    if (std::ranges::any_of(values, [&](auto each) { return each < smallest; }))
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, std::string(what) + " out of range");
}

Strided strided(cudnnDataType_t type, std::vector<std::int64_t> dims, std::vector<std::int64_t> strides) {
    check_at_least(dims, 1, "a dimension is");
    check_at_least(strides, 0, "a stride is");
    return {scalar_of(type), std::move(dims), std::move(strides)};
}

Strided formatted(cudnnDataType_t type, cudnnTensorFormat_t format, const std::vector<std::int64_t>& dims) {
    if (dims.size() < 3) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "fewer than 3 dimensions");
    return strided(type, dims, strides_of(format, dims));
}

void set_convolution(ConvolutionDesc& convolution, std::vector<std::int64_t> pads, std::vector<std::int64_t> strides,
                     std::vector<std::int64_t> dilations, cudnnConvolutionMode_t mode) {
    check_at_least(pads, 0, "padding is");
    check_at_least(strides, 1, "a stride is");
    check_at_least(dilations, 1, "a dilation is");
    convolution.pads = std::move(pads);
    convolution.strides = std::move(strides);
    convolution.dilations = std::move(dilations);
    convolution.mode = mode;
}

void set_pooling(PoolingDesc& pooling, cudnnPoolingMode_t mode, cudnnNanPropagation_t nan,
                 std::vector<std::int64_t> windows, std::vector<std::int64_t> pads, std::vector<std::int64_t> strides) {
    check_at_least(windows, 1, "a window is");
    check_at_least(pads, 0, "padding is");
    check_at_least(strides, 1, "a stride is");
    pooling = {mode, nan == CUDNN_PROPAGATE_NAN, std::move(windows), std::move(pads), std::move(strides)};
}

template <class Desc, class Handle>
cudnnStatus_t create(const char* name, Handle* handle) {
    return cudnn_call(name, [&](Call& call) { *handle = call.create<Handle>(Desc{}); });
}
template <class Desc, class Handle>
cudnnStatus_t destroy(const char* name, Handle handle) {
    return cudnn_call(name, [&](Call& call) { call.destroy<Desc>(handle); });
}

}  // namespace

const Strided& view_of(Call& call, cudnnTensorDescriptor_t descriptor) {
    return set_view(call.object<TensorDesc>(descriptor).view);
}
const Strided& view_of(Call& call, cudnnFilterDescriptor_t descriptor) {
    return set_view(call.object<FilterDesc>(descriptor).view);
}

double scaling(const void* value, const Strided& tensor) {
    if (value == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "alpha or beta is null");
    return load_scalar(tensor.type == Scalar::f64 ? Scalar::f64 : Scalar::f32, value, 0);
}

void refuse_shapes(const std::string& what) {
    refuse(cudaErrorInvalidValue, Kind::invalid_argument, "shapes do not agree: " + what);
}

void check_same_dims(const Strided& a, const Strided& b, const char* what) {
    if (a.dims != b.dims) refuse_shapes(what);
}

void check_workspace(void* workspace, std::size_t given, std::size_t needed, std::vector<Access>& accesses) {
    if (given < needed || workspace == nullptr)
        refuse(cudaErrorInvalidValue, Kind::workspace,
               "a workspace of " + std::to_string(workspace == nullptr ? 0 : given) + " bytes, " +
                   std::to_string(needed) + " are needed");
    accesses.push_back({workspace, given, true});
}

void enqueue(Call& call, cudnnHandle_t handle, std::function<void()> body, const std::vector<Access>& accesses) {
    const auto dnn = call.object<DnnHandle>(handle);
    if (dnn.device != call.current_device())
        refuse(cudaErrorInvalidResourceHandle, Kind::wrong_device,
               "the handle belongs to device " + std::to_string(dnn.device) + ", but device " +
                   std::to_string(call.current_device()) + " is current");
    call.launch(call.launch_stream(dnn.stream), call.name(), std::move(body), accesses);
}

}  // namespace standin

using namespace standin;

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
    error_fetched();
    switch (status) {
        case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
        case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
        case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
        case CUDNN_STATUS_ALLOC_FAILED: return "CUDNN_STATUS_ALLOC_FAILED";
        case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
        case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
        default: return "CUDNN_UNKNOWN_STATUS";
    }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    return cudnn_call("cudnnCreate", [&](Call& call) {
        call.need_context(call.current_device());
        *handle = call.create<cudnnHandle_t>(DnnHandle{call.current_device(), nullptr});
    });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy<DnnHandle>("cudnnDestroy", handle); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return cudnn_call("cudnnSetStream", [&](Call& call) {
        auto& dnn = call.object<DnnHandle>(handle);
        if (stream != nullptr && call.stream(stream)->device() != dnn.device)
            refuse(cudaErrorInvalidValue, Kind::wrong_device,
                   "a stream of device " + std::to_string(call.stream(stream)->device()) + " for a handle of device " +
                       std::to_string(dnn.device));
        dnn.stream = stream;
    });
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
    return cudnn_call("cudnnGetStream", [&](Call& call) { *stream = call.object<DnnHandle>(handle).stream; });
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
    return create<TensorDesc>("cudnnCreateTensorDescriptor", tensor);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
    return destroy<TensorDesc>("cudnnDestroyTensorDescriptor", tensor);
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    return cudnn_call("cudnnSetTensor4dDescriptor", [&](Call& call) {
        call.object<TensorDesc>(tensor).view = formatted(type, format, {n, c, h, w});
    });
}
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c, int h,
                                           int w, int n_stride, int c_stride, int h_stride, int w_stride) {
    return cudnn_call("cudnnSetTensor4dDescriptorEx", [&](Call& call) {
        call.object<TensorDesc>(tensor).view = strided(type, {n, c, h, w}, {n_stride, c_stride, h_stride, w_stride});
    });
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank,
                                         const int dims[], const int strides[]) {
    return cudnn_call("cudnnSetTensorNdDescriptor", [&](Call& call) {
        call.object<TensorDesc>(tensor).view = strided(type, numbers(dims, rank), numbers(strides, rank));
    });
}
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int rank, const int dims[]) {
    return cudnn_call("cudnnSetTensorNdDescriptorEx", [&](Call& call) {
        call.object<TensorDesc>(tensor).view = formatted(type, format, numbers(dims, rank));
    });
}
cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t tensor, size_t* bytes) {
    return cudnn_call("cudnnGetTensorSizeInBytes", [&](Call& call) { *bytes = view_of(call, tensor).extent_bytes(); });
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
    return create<FilterDesc>("cudnnCreateFilterDescriptor", filter);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
    return destroy<FilterDesc>("cudnnDestroyFilterDescriptor", filter);
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
    return cudnn_call("cudnnSetFilter4dDescriptor", [&](Call& call) {
        call.object<FilterDesc>(filter).view = formatted(type, format, {k, c, h, w});
    });
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int rank, const int dims[]) {
    return cudnn_call("cudnnSetFilterNdDescriptor", [&](Call& call) {
        call.object<FilterDesc>(filter).view = formatted(type, format, numbers(dims, rank));
    });
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
    return create<ConvolutionDesc>("cudnnCreateConvolutionDescriptor", convolution);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
    return destroy<ConvolutionDesc>("cudnnDestroyConvolutionDescriptor", convolution);
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t) {
    return cudnn_call("cudnnSetConvolution2dDescriptor", [&](Call& call) {
        set_convolution(call.object<ConvolutionDesc>(convolution), {pad_h, pad_w}, {stride_h, stride_w},
                        {dilation_h, dilation_w}, mode);
    });
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int rank, const int pads[],
                                              const int strides[], const int dilations[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t) {
    return cudnn_call("cudnnSetConvolutionNdDescriptor", [&](Call& call) {
        set_convolution(call.object<ConvolutionDesc>(convolution), numbers(pads, rank), numbers(strides, rank),
                        numbers(dilations, rank), mode);
    });
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
    return cudnn_call("cudnnSetConvolutionMathType",
                      [&](Call& call) { call.object<ConvolutionDesc>(convolution).math = math; });
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
    return cudnn_call("cudnnSetConvolutionGroupCount", [&](Call& call) {
        if (groups < 1) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "fewer than one group");
        call.object<ConvolutionDesc>(convolution).groups = groups;
    });
}

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling) {
    return create<PoolingDesc>("cudnnCreatePoolingDescriptor", pooling);
}
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) {
    return destroy<PoolingDesc>("cudnnDestroyPoolingDescriptor", pooling);
}
cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int window_h, int window_w, int pad_h, int pad_w,
                                          int stride_h, int stride_w) {
    return cudnn_call("cudnnSetPooling2dDescriptor", [&](Call& call) {
        set_pooling(call.object<PoolingDesc>(pooling), mode, nan, {window_h, window_w}, {pad_h, pad_w},
                    {stride_h, stride_w});
    });
}
cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, const cudnnPoolingMode_t mode,
                                          const cudnnNanPropagation_t nan, int rank, const int windows[],
                                          const int pads[], const int strides[]) {
    return cudnn_call("cudnnSetPoolingNdDescriptor", [&](Call& call) {
        set_pooling(call.object<PoolingDesc>(pooling), mode, nan, numbers(windows, rank), numbers(pads, rank),
                    numbers(strides, rank));
    });
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* activation) {
    return create<ActivationDesc>("cudnnCreateActivationDescriptor", activation);
}
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation) {
    return destroy<ActivationDesc>("cudnnDestroyActivationDescriptor", activation);
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double coefficient) {
    return cudnn_call("cudnnSetActivationDescriptor", [&](Call& call) {
        call.object<ActivationDesc>(activation) = {mode, nan == CUDNN_PROPAGATE_NAN, coefficient};
    });
}

cudnnStatus_t cudnnCreateOpTensorDescriptor(cudnnOpTensorDescriptor_t* op) {
    return create<OpTensorDesc>("cudnnCreateOpTensorDescriptor", op);
}
cudnnStatus_t cudnnDestroyOpTensorDescriptor(cudnnOpTensorDescriptor_t op) {
    return destroy<OpTensorDesc>("cudnnDestroyOpTensorDescriptor", op);
}
cudnnStatus_t cudnnSetOpTensorDescriptor(cudnnOpTensorDescriptor_t descriptor, cudnnOpTensorOp_t op, cudnnDataType_t,
                                         cudnnNanPropagation_t) {
    return cudnn_call("cudnnSetOpTensorDescriptor", [&](Call& call) { call.object<OpTensorDesc>(descriptor).op = op; });
}

cudnnStatus_t cudnnCreateReduceTensorDescriptor(cudnnReduceTensorDescriptor_t* reduce) {
    return create<ReduceDesc>("cudnnCreateReduceTensorDescriptor", reduce);
}
cudnnStatus_t cudnnDestroyReduceTensorDescriptor(cudnnReduceTensorDescriptor_t reduce) {
    return destroy<ReduceDesc>("cudnnDestroyReduceTensorDescriptor", reduce);
}
cudnnStatus_t cudnnSetReduceTensorDescriptor(cudnnReduceTensorDescriptor_t reduce, cudnnReduceTensorOp_t op,
                                             cudnnDataType_t, cudnnNanPropagation_t, cudnnReduceTensorIndices_t indices,
                                             cudnnIndicesType_t) {
    return cudnn_call("cudnnSetReduceTensorDescriptor", [&](Call& call) {
        if (indices != CUDNN_REDUCE_TENSOR_NO_INDICES)
            refuse(cudaErrorNotSupported, Kind::unsupported, "reductions with indices");
        call.object<ReduceDesc>(reduce).op = op;
    });
}

}  // extern "C"
