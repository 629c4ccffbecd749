// Products of matrices, and linear layers.
#pragma once

#include "lockstep/ops/internal/activation.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// in: a (B..., M, K), b (B..., K, N), with the same B (or none), 2 or 3 dims; out: (B..., M, N). Operands may come
/// transposed (strided): kernels take those without copy where they can.
struct MatMul {
    static constexpr const char* name = "matmul";
};
/// in: x (N, in), weight (out, in), bias (out) or undefined; out: activation(y), y (N, out) = x weight^T + bias
struct LinearForward {
    Activation activation = Activation::none;
    const char* name() const { return activation == Activation::relu ? "linear_relu_forward" : "linear_forward"; }
};
/// in: dy (N, out), weight (out, in); out: dx (N, in)
struct LinearBackwardData {
    static constexpr const char* name = "linear_backward_data";
};
/// in: x (N, in), dy (N, out); out: dweight (out, in), and dbias (out) or undefined
struct LinearBackwardWeights {
    static constexpr const char* name = "linear_backward_weights";
};

}  // namespace lockstep
