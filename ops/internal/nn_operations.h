// Operations of layers and losses.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

// Functions that an operation can apply to its result before writing it.

/// An attribute of operations. Bits are those of the operation and the function one after the other.
enum class Activation : std::uint8_t { none, relu };

// Products of matrices, and linear layers.

/// in: a (B..., M, K), b (B..., K, N), with the same B (or none), 2 or 3 dims; out: (B..., M, N). Operands may be
/// transposed (strided): kernels read them without a copy if they can.
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

// Convolution in two dimensions.

struct ConvGeometry {
    int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
    std::int64_t groups = 1;  ///< divides C and K

    /// Every window reads adjacent elements of all channels, as the algorithms of Winograd and Fourier need it.
    bool is_dense() const { return dilation_h == 1 && dilation_w == 1 && groups == 1; }
};
/// in: x (N, C, H, W), weight (K, C / groups, kh, kw) row-major, bias (K) or undefined; out: activation(y), y (N, K,
/// OH, OW)
struct Conv2dForward {
    ConvGeometry geometry;
    Activation activation = Activation::none;
    const char* name() const { return activation == Activation::relu ? "conv2d_relu_forward" : "conv2d_forward"; }
};
/// in: dy (N, K, OH, OW), weight, and x (N, C, H, W) if x is the result of an activation; out: dx (N, C, H, W), the
/// gradient of x, or of the activation's input. H and W are given by the output, as several sizes lead to OH and OW.
/// Also implements transposed convolution.
struct Conv2dBackwardData {
    ConvGeometry geometry;
    Activation made_x = Activation::none;
    const char* name() const {
        return made_x == Activation::relu ? "conv2d_relu_backward_data" : "conv2d_backward_data";
    }
};
/// in: x, dy; out: dweight (K, C / groups, kh, kw) row-major, and dbias (K) or undefined. `widens`: x and dy are f16 or
/// bf16, and dweight has the values of their dtype in f32; there is no dbias
struct Conv2dBackwardWeights {
    ConvGeometry geometry;
    bool widens = false;
    const char* name() const { return widens ? "conv2d_backward_weights_widened" : "conv2d_backward_weights"; }
};

// Max pooling.

struct PoolGeometry {
    int kernel_h = 2, kernel_w = 2, stride_h = 2, stride_w = 2, pad_h = 0, pad_w = 0;
};
/// in: x (N, C, H, W); out: y (N, C, OH, OW) in the layout of x, and where (u8, shape of y, same arrangement): position
/// of the first largest element inside its window, row by row (windows have at most 255 elements)
struct MaxPool2dForward {
    static constexpr const char* name = "max_pool2d_forward";
    PoolGeometry geometry;
};
/// in: dy, where, and with an activation y: the pooling's result for an activation before it, or the result of an
/// activation after it; out: dx (N, C, H, W), in the layout of `where`, the gradient through both
struct MaxPool2dBackward {
    PoolGeometry geometry;
    Activation activation = Activation::none;
    const char* name() const {
        return activation == Activation::relu ? "max_pool2d_relu_backward" : "max_pool2d_backward";
    }
};

// Interpolation of images: the elements of x that contribute to an element of the result, for all backends.

struct InterpolateGeometry {
    bool nearest;  ///< otherwise bilinear
    bool align_corners;
    double step_h, step_w;  ///< elements of x from one element of the result to the next
};
/// in: x (N, C, H, W); out: y (N, C, OH, OW), in the layout of x
struct InterpolateForward {
    static constexpr const char* name = "interpolate_forward";
    InterpolateGeometry geometry;
};
/// in: dy; out: dx, in the layout of dy
struct InterpolateBackward {
    static constexpr const char* name = "interpolate_backward";
    InterpolateGeometry geometry;
};

namespace element {

/// y = (1 - share) * x[first] + share * x[second] along one dimension.
template <class T>
struct Taps {
    std::ptrdiff_t first, second;
    T share;
};

/// Taps of element `o` of the result along a dimension of size `in`. Positions are PyTorch's: single precision for
/// nearest, where it decides which element is nearest; double for bilinear, with shares rounded to T. Kernels may
/// compute in single precision if it is exact (Real).
template <class T, class Real = double>
LOCKSTEP_HD_INLINE Taps<T> interpolation_taps(bool nearest, bool align_corners, Real step, std::ptrdiff_t in,
                                              std::ptrdiff_t o) {
    const std::ptrdiff_t last = in - 1;
    if (nearest) {
        const auto at = static_cast<std::ptrdiff_t>(std::floor(static_cast<float>(o) * static_cast<float>(step)));
        const std::ptrdiff_t only = at < last ? at : last;
        return {only, only, T(0)};
    }
    Real position = static_cast<Real>(o) * step;
    if (!align_corners) position += Real(0.5) * step - Real(0.5);
    if (position < 0) position = 0;
    const auto floor = static_cast<std::ptrdiff_t>(position);
    if (floor >= last) return {last, last, T(0)};
    return {floor, floor + 1, static_cast<T>(position - static_cast<Real>(floor))};
}

}  // namespace element

// Normalisation: of batches over (N, H, W), of layers over the last dimensions.

/// in: x (N, C, H, W), any layout; out: stats (2C + 1): mean of every channel, M2 (sum of squared deviations) of every
/// channel, and the count N*H*W
struct BatchNormStats {
    static constexpr const char* name = "batch_norm_stats";
};
/// Stats of all shards pooled along the tree of shards (Chan et al.), or those of shard 0 if `first_only`.
/// in: stats (2C + 1); out: stats (2C + 1)
struct BatchNormPoolStats {
    static constexpr const char* name = "batch_norm_pool_stats";
    static constexpr bool joins = true;
    static constexpr OperationScope scope = OperationScope::all_shards;
    bool first_only;
};
/// in: x, stats (2C + 1), weight (C) or undefined (1), bias (C) or undefined (0); out: activation(y), y = (x - mean) /
/// sqrt(M2 / count + eps) * weight + bias, in the layout of x
struct BatchNormNormalize {
    double eps;
    Activation activation = Activation::none;
    const char* name() const {
        return activation == Activation::relu ? "batch_norm_relu_normalize" : "batch_norm_normalize";
    }
};
/// dy is the gradient of activation(y), of which y is computed again.
/// in: x, dy, stats, and with an activation weight (C) or undefined (1), bias (C) or undefined (0); out: sums (2C),
/// which are dbias and dweight one after the other, dbias (C) or undefined: the sum of dy, dweight (C) or undefined:
/// the sum of dy * xhat
struct BatchNormBackwardSums {
    double eps;
    Activation activation = Activation::none;
    const char* name() const {
        return activation == Activation::relu ? "batch_norm_relu_backward_sums" : "batch_norm_backward_sums";
    }
};
/// in: x, dy as above, stats, weight (C) or undefined (1), sums (2C) or undefined (0: no gradient through the
/// statistics), and with an activation bias (C) or undefined (0); out: dx, in the layout of x; the sums are divided by
/// the count in stats
struct BatchNormBackwardData {
    double eps;
    Activation activation = Activation::none;
    const char* name() const {
        return activation == Activation::relu ? "batch_norm_relu_backward_data" : "batch_norm_backward_data";
    }
};
/// running = (1 - momentum) * running + momentum * value, variance with M2 / (count - 1). Runs if the step is good.
/// in: stats (2C + 1); out (both written in place): running_mean (C), running_var (C)
struct BatchNormUpdateRunning {
    static constexpr const char* name = "batch_norm_update_running";
    static constexpr bool joins = true;
    double momentum;
    bool commits() const { return true; }
};
/// The last `dims` dimensions of x are a layer of n elements, those before them rows.
/// in: x, weight (n elements) or undefined (1), bias (n elements) or undefined (0); out: y = (x - mean) * deviation *
/// weight + bias, mean (rows) or undefined, deviation (rows) or undefined: 1 / sqrt(biased variance + eps)
struct LayerNormForward {
    static constexpr const char* name = "layer_norm_forward";
    int dims;
    double eps;
};
/// in: dy, x, mean (rows), deviation (rows), weight or undefined; out: dx
struct LayerNormBackwardData {
    static constexpr const char* name = "layer_norm_backward_data";
    int dims;
};
/// in: dy, x, mean (rows), deviation (rows); out: dweight or undefined, dbias or undefined
struct LayerNormBackwardWeights {
    static constexpr const char* name = "layer_norm_backward_weights";
    int dims;
};
/// out (in place, i64 scalar): counter + 1. Runs if the step is good.
struct IncrementCounter {
    static constexpr const char* name = "increment_counter";
    static constexpr bool joins = true;
    bool commits() const { return true; }
};

// Softmax, its logarithm and losses.

/// in: x; out: exp(x) / sum(exp(x)) along dimension `dim`, or its logarithm
template <bool logarithm>
struct SoftmaxForward {
    static constexpr const char* name = logarithm ? "log_softmax_forward" : "softmax_forward";
    int dim;
};
/// in: dy, y; out: dx = y * (dy - sum(dy * y)) along `dim`; of the logarithm dy - exp(y) * sum(dy)
template <bool logarithm>
struct SoftmaxBackward {
    static constexpr const char* name = logarithm ? "log_softmax_backward" : "softmax_backward";
    int dim;
};
/// in: log_probabilities (N, C, ...), target (N, ...) i64, class weights (C) or undefined; out: numerator (scalar) =
/// sum of -w[t] * logp[t], weight (scalar) = sum of w[t], over positions whose target is not ignore_index. A target
/// outside 0..C-1 that is not ignore_index is reported in the status word (StatusCode::target_out_of_range, with row
/// and value) and contributes 0.
struct NllForward {
    static constexpr const char* name = "nll_forward";
    static constexpr bool reports_status = true;
    /// The weight does not need the log-probabilities.
    static constexpr bool depends(std::size_t output, std::size_t input) { return output == 0 || input != 0; }
    std::int64_t ignore_index;
};
/// in: gradient of the numerator (scalar), target, class weights or undefined; out: dlogp (N, C, ...)
struct NllBackward {
    static constexpr const char* name = "nll_backward";
    std::int64_t ignore_index;
};
/// in: a, b (same shape); out: sum of (a - b)^2 (scalar)
struct SquaredErrorForward {
    static constexpr const char* name = "squared_error_forward";
};
/// in: gradient (scalar), a, b; out: 2 * gradient * (a - b)
struct SquaredErrorBackward {
    static constexpr const char* name = "squared_error_backward";
};
/// in: value (scalar); reports StatusCode::loss_not_finite in the status word; out: value
struct CheckFinite {
    static constexpr const char* name = "check_finite";
    static constexpr bool reports_status = true;
};

}  // namespace lockstep
