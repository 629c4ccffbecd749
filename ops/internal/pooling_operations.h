// Max pooling; with the gradient of a ReLU in it where a program joins both (fusion_rules.h).
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

struct PoolGeometry {
    int kernel_h = 2, kernel_w = 2, stride_h = 2, stride_w = 2, pad_h = 0, pad_w = 0;
};
/// in: x (N, C, H, W); out: y (N, C, OH, OW) in the layout of x, and where (u8, shape of y, same arrangement): position
/// of the first largest element inside its window, row by row (windows have at most 255 elements)
struct MaxPool2dForward {
    static constexpr const char* name = "max_pool2d_forward";
    PoolGeometry geometry;
};
/// in: dy, where; out: dx (N, C, H, W), in the layout of `where`
struct MaxPool2dBackward {
    static constexpr const char* name = "max_pool2d_backward";
    PoolGeometry geometry;
};

/// in: dy, where, y (what the pooling made of ReLU's result, or ReLU of the pooling's); out: 0 in the windows where
/// y <= 0, else dx
struct MaxPool2dReluBackward {
    static constexpr const char* name = "max_pool2d_relu_backward";
    PoolGeometry geometry;
};

}  // namespace lockstep
