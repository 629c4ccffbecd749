// cuDNN descriptors of a convolution.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "lockstep/ops/cuda/filter.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/libraries.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

using TensorDescriptor = Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor = Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;

/// Sizes of one convolution: x (N, C, H, W), w (K, C / groups, kh, kw), y (N, K, OH, OW), all of one dtype: f32, f16 or
/// bf16. `widens`: computed weights are converted to f32. `weights_last`: they remain in cuDNN's order for
/// channels-last images.
struct Sizes {
    Shape x, w, y;
    DType dtype;
    bool widens = false, weights_last = false;
};

/// A size in cuDNN's type.
inline int to_int(std::int64_t size) {
    if (size > std::int64_t{1} << 30)
        throw InvalidArgument(fmt::format(
            "conv2d: a dimension of {} elements exceeds cuDNN's limit; expected a smaller batch or image", size));
    return static_cast<int>(size);
}

/// Memory for a dense tensor.
inline std::size_t aligned_bytes(const Shape& shape, DType dtype) {
    return round_up(static_cast<std::size_t>(shape.numel()) * size_of(dtype), scratch_alignment);
}

inline cudnnDataType_t cudnn_type(DType dtype) {
    if (dtype == DType::f16) return CUDNN_DATA_HALF;
    return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/// The descriptors of a convolution in one of the two layouts.
class Convolution {
public:
    /// `tf32`: allows TF32; for f32 only.
    Convolution(const Sizes& sizes, const ConvGeometry& g, bool channels_last, bool tf32)
        : sizes_(sizes),
          channels_last_(channels_last),
          x_("cudnnCreateTensorDescriptor"),
          y_("cudnnCreateTensorDescriptor"),
          w_("cudnnCreateFilterDescriptor"),
          convolution_("cudnnCreateConvolutionDescriptor") {
        const cudnnTensorFormat_t format = channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
        const cudnnDataType_t type = cudnn_type(sizes.dtype);
        const auto set = [&](const TensorDescriptor& descriptor, const Shape& s) {
            check(cudnnSetTensor4dDescriptor(descriptor.get(), format, type, to_int(s[0]), to_int(s[1]), to_int(s[2]),
                                             to_int(s[3])),
                  "cudnnSetTensor4dDescriptor");
        };
        set(x_, sizes.x);
        set(y_, sizes.y);
        check(cudnnSetFilter4dDescriptor(w_.get(), type, format, to_int(sizes.w[0]), to_int(sizes.w[1]),
                                         to_int(sizes.w[2]), to_int(sizes.w[3])),
              "cudnnSetFilter4dDescriptor");
        check(cudnnSetConvolution2dDescriptor(convolution_.get(), g.pad_h, g.pad_w, g.stride_h, g.stride_w,
                                              g.dilation_h, g.dilation_w, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
        check(cudnnSetConvolutionGroupCount(convolution_.get(), to_int(g.groups)), "cudnnSetConvolutionGroupCount");
        // With cuDNN's default, f32 inputs may be rounded to TF32, 10 bits of mantissa. Products of 16-bit floats are
        // exact in f32, in which they are added up.
        const cudnnMathType_t f32_math = tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
        const cudnnMathType_t math = sizes.dtype == DType::f32 ? f32_math : CUDNN_TENSOR_OP_MATH;
        check(cudnnSetConvolutionMathType(convolution_.get(), math), "cudnnSetConvolutionMathType");
    }

    cudnnTensorDescriptor_t x() const { return x_.get(); }
    cudnnTensorDescriptor_t y() const { return y_.get(); }
    cudnnFilterDescriptor_t w() const { return w_.get(); }
    cudnnConvolutionDescriptor_t get() const { return convolution_.get(); }
    bool channels_last() const { return channels_last_; }
    const Sizes& sizes() const { return sizes_; }

    /// Whether cuDNN's order of weights is not that of their arena.
    bool reorders_weights() const { return channels_last_ && sizes_.w[1] > 1 && sizes_.w[2] * sizes_.w[3] > 1; }
    /// Whether computed weights are converted to another order or dtype.
    bool converts_weights() const { return sizes_.widens || reorders_weights() != sizes_.weights_last; }
    std::size_t weight_bytes() const { return aligned_bytes(sizes_.w, sizes_.dtype); }
    void store_weights(const Queue& queue, void* to, const void* computed) const {
        const FilterShape shape = FilterShape::of(sizes_.w);
        if (sizes_.widens)
            widen_filters(queue, sizes_.dtype, shape, reorders_weights(), static_cast<float*>(to), computed);
        else
            convert_filters(queue, sizes_.dtype, shape, sizes_.weights_last, to, computed);
    }

    void want_weights(KernelRequest& request, std::size_t input) const {
        if (reorders_weights())
            want_channels_last(request, input);
        else
            request.want_contiguous(input);
    }
    void want(KernelRequest& request, std::size_t input) const {
        if (channels_last_)
            want_channels_last(request, input);
        else
            request.want_contiguous(input);
    }
    void lay_out(TensorMeta& out) const {
        if (channels_last_) set_channels_last(out);
    }

private:
    Sizes sizes_;
    bool channels_last_;
    TensorDescriptor x_, y_;
    FilterDescriptor w_;
    ConvolutionDescriptor convolution_;
};

}  // namespace lockstep::cuda
