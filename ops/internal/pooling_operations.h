// Max pooling.
#pragma once

#include "lockstep/ops/internal/activation.h"
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
/// in: dy, where, and with an activation y, what the pooling made of the activation's result, or the activation of the
/// pooling's; out: dx (N, C, H, W), in the layout of `where`, the gradient through both
struct MaxPool2dBackward {
    PoolGeometry geometry;
    Activation activation = Activation::none;
    const char* name() const {
        return activation == Activation::relu ? "max_pool2d_relu_backward" : "max_pool2d_backward";
    }
};

}  // namespace lockstep
