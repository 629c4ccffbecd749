// Convolution in two dimensions; with a ReLU in it where a program joins both (fusion_rules.h).
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

struct ConvGeometry {
    int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
};
/// in: x (N, C, H, W), weight (K, C, kh, kw) row-major, bias (K) or undefined; out: y (N, K, OH, OW)
struct Conv2dForward {
    static constexpr const char* name = "conv2d_forward";
    ConvGeometry geometry;
};
/// in: dy (N, K, OH, OW), weight; out: dx (N, C, H, W)
struct Conv2dBackwardData {
    static constexpr const char* name = "conv2d_backward_data";
    ConvGeometry geometry;
};
/// in: x, dy; out: dweight (K, C, kh, kw) row-major, and dbias (K) when there are two outputs
struct Conv2dBackwardWeights {
    static constexpr const char* name = "conv2d_backward_weights";
    ConvGeometry geometry;
};

/// in: as conv2d_forward; out: relu(y)
struct Conv2dReluForward {
    static constexpr const char* name = "conv2d_relu_forward";
    ConvGeometry geometry;
};
/// in: dy, weight, x (N, C, H, W), which ReLU made; out: 0 where x <= 0, else dx
struct Conv2dReluBackwardData {
    static constexpr const char* name = "conv2d_relu_backward_data";
    ConvGeometry geometry;
};

}  // namespace lockstep
