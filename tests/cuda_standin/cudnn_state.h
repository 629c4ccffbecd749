// The stand-in's representation of cuDNN's handles and descriptors.
#pragma once

#include "lockstep/tests/cuda_standin/dense.h"
#include "lockstep/tests/cuda_standin/state.h"

namespace standin {

struct DnnHandle {
    int device;
    cudaStream_t stream;
};

struct TensorDesc {
    Strided view;  // no dims until it is set
};
struct FilterDesc {
    Strided view;  // (K, C per group, R, S), strides by its format
};
struct ConvolutionDesc {
    std::vector<std::int64_t> pads, strides, dilations;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    std::int64_t groups = 1;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};
struct PoolingDesc {
    cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
    bool propagate_nan = false;
    std::vector<std::int64_t> windows, pads, strides;
};
struct ActivationDesc {
    cudnnActivationMode_t mode = CUDNN_ACTIVATION_IDENTITY;
    bool propagate_nan = false;
    double coefficient = 0;
};
struct OpTensorDesc {
    cudnnOpTensorOp_t op = CUDNN_OP_TENSOR_ADD;
};
struct ReduceDesc {
    cudnnReduceTensorOp_t op = CUDNN_REDUCE_TENSOR_ADD;
};

Scalar scalar_of(cudnnDataType_t type);
/// The view that a descriptor holds; refuses one that was never set.
const Strided& view_of(Call& call, cudnnTensorDescriptor_t descriptor);
const Strided& view_of(Call& call, cudnnFilterDescriptor_t descriptor);

/// cuDNN reads alpha and beta as double for double tensors and as float for all others.
double scaling(const void* value, const Strided& tensor);
inline Access reads(const void* data, const Strided& tensor) { return {data, tensor.extent_bytes(), false}; }
inline Access writes(void* data, const Strided& tensor) { return {data, tensor.extent_bytes(), true}; }

[[noreturn]] void refuse_shapes(const std::string& what);
void check_same_dims(const Strided& a, const Strided& b, const char* what);
/// Refuses a workspace that is missing or smaller than `needed`; adds it to what the kernel writes.
void check_workspace(void* workspace, std::size_t given, std::size_t needed, std::vector<Access>& accesses);

/// Enqueues on the handle's stream under the call's name; the handle's device must be current.
void enqueue(Call& call, cudnnHandle_t handle, std::function<void()> body, const std::vector<Access>& accesses);

double activate(const ActivationDesc& activation, double x);

}  // namespace standin
