// Convolution in two dimensions.
#pragma once

#include "lockstep/ops/internal/activation.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

struct ConvGeometry {
    int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
};
/// in: x (N, C, H, W), weight (K, C, kh, kw) row-major, bias (K) or undefined; out: activation(y), y (N, K, OH, OW)
struct Conv2dForward {
    ConvGeometry geometry;
    Activation activation = Activation::none;
    const char* name() const { return activation == Activation::relu ? "conv2d_relu_forward" : "conv2d_forward"; }
};
/// in: dy (N, K, OH, OW), weight, and where x is the result of an activation, x (N, C, H, W); out: dx (N, C, H, W), the
/// gradient of x, or of what that activation took; H and W are those asked for, of all that lead to OH and OW. This is
/// also what a transposed convolution does.
struct Conv2dBackwardData {
    ConvGeometry geometry;
    Activation made_x = Activation::none;
    const char* name() const {
        return made_x == Activation::relu ? "conv2d_relu_backward_data" : "conv2d_backward_data";
    }
};
/// in: x, dy; out: dweight (K, C, kh, kw) row-major, and dbias (K) or undefined
struct Conv2dBackwardWeights {
    static constexpr const char* name = "conv2d_backward_weights";
    ConvGeometry geometry;
};

}  // namespace lockstep
