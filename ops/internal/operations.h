// Every operation with its attributes: what ops/*.cpp asks for and ops/cpu, ops/cuda have kernels for. Inputs and
// outputs are listed as `in: name (shape)`; f32 and f64 unless said otherwise (f64 may be CPU only). To add one: a
// struct here, the function with its gradient in ops/, a kernel in ops/cpu and ops/cuda, a line in the op table of
// tests/ops.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

// ---- elementwise ----------------------------------------------------------------------------------------------

enum class BinaryKind : std::uint8_t { add, sub, mul, div };
/// in: a, b (broadcast together, any strides; all dtypes but bool); out: y. `mul` of an opaque 4-D `a` by a `b` of
/// shape (N, C, 1, 1) keeps the layout of `a`; equal opaque layouts are kept as well.
struct Binary final : Operation {
    explicit Binary(BinaryKind k) : kind(k) {}
    BinaryKind kind;
    std::string_view name() const override;
    void describe(Signature& s) const override { s.add(kind); }
    bool is_elementwise() const override { return true; }
};

/// x + no_shift is x for every x; + 0 would make 0 of -0.
constexpr double no_shift = -0.0;
/// in: x (any layout; opaque is kept); out: scale * x + shift
struct Affine final : Operation {
    Affine(double a, double b) : scale(a), shift(b) {}
    double scale, shift;
    std::string_view name() const override { return "affine"; }
    void describe(Signature& s) const override { s.add(scale).add(shift); }
    bool is_elementwise() const override { return true; }
};

// ---- reductions and indexing (Sum: core_operations.h)
// ----------------------------------------------------------------------------------

/// in: x; out: i64, index of the first largest element of dimension `dim`, kept with size 1
struct ArgMax final : Operation {
    explicit ArgMax(int d) : dim(d) {}
    int dim;
    std::string_view name() const override { return "argmax"; }
    void describe(Signature& s) const override { s.add(dim); }
};

/// in: n tensors alike but for `dim`; out: them one after another along `dim`
struct Cat final : Operation {
    explicit Cat(int d) : dim(d) {}
    int dim;
    std::string_view name() const override { return "cat"; }
    void describe(Signature& s) const override { s.add(dim); }
};

// ---- linear algebra -------------------------------------------------------------------------------------------

/// in: a (B..., M, K), b (B..., K, N), with the same B (or none), 2 or 3 dims; out: (B..., M, N). Operands may come
/// transposed (strided): kernels take those without copy where they can.
struct MatMul final : Operation {
    std::string_view name() const override { return "matmul"; }
};
/// in: x (N, in), weight (out, in), bias (out) or undefined; out: y (N, out) = x weight^T + bias
struct LinearForward final : Operation {
    std::string_view name() const override { return "linear_forward"; }
};
/// in: dy (N, out), weight (out, in); out: dx (N, in)
struct LinearBackwardData final : Operation {
    std::string_view name() const override { return "linear_backward_data"; }
};
/// in: x (N, in), dy (N, out); out: dweight (out, in), and dbias (out) when there are two outputs
struct LinearBackwardWeights final : Operation {
    std::string_view name() const override { return "linear_backward_weights"; }
};

// ---- convolution and pooling ----------------------------------------------------------------------------------

struct ConvGeometry {
    int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
    void describe(Signature& s) const { s.add(stride_h).add(stride_w).add(pad_h).add(pad_w); }
};
/// in: x (N, C, H, W), weight (K, C, kh, kw) row-major, bias (K) or undefined; out: y (N, K, OH, OW)
struct Conv2dForward final : Operation {
    explicit Conv2dForward(ConvGeometry g) : geometry(g) {}
    ConvGeometry geometry;
    std::string_view name() const override { return "conv2d_forward"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};
/// in: dy (N, K, OH, OW), weight; out: dx (N, C, H, W)
struct Conv2dBackwardData final : Operation {
    explicit Conv2dBackwardData(ConvGeometry g) : geometry(g) {}
    ConvGeometry geometry;
    std::string_view name() const override { return "conv2d_backward_data"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};
/// in: x, dy; out: dweight (K, C, kh, kw) row-major, and dbias (K) when there are two outputs
struct Conv2dBackwardWeights final : Operation {
    explicit Conv2dBackwardWeights(ConvGeometry g) : geometry(g) {}
    ConvGeometry geometry;
    std::string_view name() const override { return "conv2d_backward_weights"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};

struct PoolGeometry {
    int kernel_h = 2, kernel_w = 2, stride_h = 2, stride_w = 2, pad_h = 0, pad_w = 0;
    void describe(Signature& s) const {
        s.add(kernel_h).add(kernel_w).add(stride_h).add(stride_w).add(pad_h).add(pad_w);
    }
};
/// in: x (N, C, H, W); out: y (N, C, OH, OW) in the layout of x, and where (u8, shape of y, same arrangement): position
/// of the first largest element inside its window, row by row (windows have at most 255 elements)
struct MaxPool2dForward final : Operation {
    explicit MaxPool2dForward(PoolGeometry g) : geometry(g) {}
    PoolGeometry geometry;
    std::string_view name() const override { return "max_pool2d_forward"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};
/// in: dy, where; out: dx (N, C, H, W), in the layout of `where`
struct MaxPool2dBackward final : Operation {
    explicit MaxPool2dBackward(PoolGeometry g) : geometry(g) {}
    PoolGeometry geometry;
    std::string_view name() const override { return "max_pool2d_backward"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};

// ---- two in one: what a program may make of a ReLU and its neighbour (parallel/internal/fusion.h) ---------------

/// in: as conv2d_forward; out: relu(y)
struct Conv2dReluForward final : Operation {
    explicit Conv2dReluForward(ConvGeometry g) : geometry(g) {}
    ConvGeometry geometry;
    std::string_view name() const override { return "conv2d_relu_forward"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};
/// in: dy, weight, x (N, C, H, W), which ReLU made; out: 0 where x <= 0, else dx
struct Conv2dReluBackwardData final : Operation {
    explicit Conv2dReluBackwardData(ConvGeometry g) : geometry(g) {}
    ConvGeometry geometry;
    std::string_view name() const override { return "conv2d_relu_backward_data"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};
/// in: dy, where, y (what the pooling made of ReLU's result, or ReLU of the pooling's); out: 0 in the windows where
/// y <= 0, else dx
struct MaxPool2dReluBackward final : Operation {
    explicit MaxPool2dReluBackward(PoolGeometry g) : geometry(g) {}
    PoolGeometry geometry;
    std::string_view name() const override { return "max_pool2d_relu_backward"; }
    void describe(Signature& s) const override { geometry.describe(s); }
};

// ---- batch normalisation over (N, H, W) -----------------------------------------------------------------------

/// in: x (N, C, H, W), any layout; out: stats (2C + 1): mean of every channel, M2 (sum of squared deviations) of every
/// channel, and the count N*H*W
struct BatchNormStats final : Operation {
    std::string_view name() const override { return "batch_norm_stats"; }
};
/// Stats of all shards pooled along the tree of shards (Chan et al.), or those of shard 0 alone where `first_only`.
/// in: stats (2C + 1); out: stats (2C + 1)
struct BatchNormPoolStats final : Operation {
    explicit BatchNormPoolStats(bool first = false) : first_only(first) {}
    bool first_only;
    std::string_view name() const override { return "batch_norm_pool_stats"; }
    void describe(Signature& s) const override { s.add(first_only); }
    Span span() const override { return Span::all_shards; }
};
/// in: x, stats (2C + 1), weight (C), bias (C); out: y = (x - mean) / sqrt(M2 / count + eps) * weight + bias, laid out
/// as x
struct BatchNormNormalize final : Operation {
    explicit BatchNormNormalize(double e) : eps(e) {}
    double eps;
    std::string_view name() const override { return "batch_norm_normalize"; }
    void describe(Signature& s) const override { s.add(eps); }
};
/// in: x, dy, stats; out: sums (2C): sum of dy, sum of dy * xhat (which are dbias and dweight)
struct BatchNormBackwardSums final : Operation {
    explicit BatchNormBackwardSums(double e) : eps(e) {}
    double eps;
    std::string_view name() const override { return "batch_norm_backward_sums"; }
    void describe(Signature& s) const override { s.add(eps); }
};
/// in: x, dy, stats, weight (C), sums (2C); out: dx, laid out as x; the sums are divided by the count in stats
struct BatchNormBackwardData final : Operation {
    explicit BatchNormBackwardData(double e) : eps(e) {}
    double eps;
    std::string_view name() const override { return "batch_norm_backward_data"; }
    void describe(Signature& s) const override { s.add(eps); }
};
/// running = (1 - momentum) * running + momentum * value, variance with M2 / (count - 1). Runs when the step is good.
/// in: stats (2C + 1); out (both written in place): running_mean (C), running_var (C)
struct BatchNormUpdateRunning final : Operation {
    explicit BatchNormUpdateRunning(double m) : momentum(m) {}
    double momentum;
    std::string_view name() const override { return "batch_norm_update_running"; }
    void describe(Signature& s) const override { s.add(momentum); }
    bool commits() const override { return true; }
};
/// out (in place, i64 scalar): counter + 1. Runs when the step is good.
struct IncrementCounter final : Operation {
    std::string_view name() const override { return "increment_counter"; }
    bool commits() const override { return true; }
};

// ---- random masks ---------------------------------------------------------------------------------------------

/// out: mask, contiguous: 0 with probability p, else 1 / (1 - p). Element e of the shard's mask is drawn with counter
/// first_row * row_size + e where dimension 0 is the batch (row_size: elements a row of the mask has), else with
/// counter (shard << 40) + e.
struct DropoutMask final : Operation {
    DropoutMask(double probability, bool is_batch) : p(probability), batch(is_batch) {}
    double p;
    bool batch;
    std::string_view name() const override { return "dropout_mask"; }
    void describe(Signature& s) const override { s.add(p).add(batch); }
    bool is_random() const override { return true; }
};

// ---- softmax and losses ---------------------------------------------------------------------------------------

/// in: x; out: x - log(sum(exp(x))) along dimension `dim`
struct LogSoftmaxForward final : Operation {
    explicit LogSoftmaxForward(int d) : dim(d) {}
    int dim;
    std::string_view name() const override { return "log_softmax_forward"; }
    void describe(Signature& s) const override { s.add(dim); }
};
/// in: dy, y; out: dx = dy - exp(y) * sum(dy) along `dim`
struct LogSoftmaxBackward final : Operation {
    explicit LogSoftmaxBackward(int d) : dim(d) {}
    int dim;
    std::string_view name() const override { return "log_softmax_backward"; }
    void describe(Signature& s) const override { s.add(dim); }
};
/// in: log_probabilities (N, C), target (N) i64, class weights (C) or undefined; out: numerator (scalar)
/// = sum of -w[t] * logp[t], weight (scalar) = sum of w[t], over rows whose target is not ignore_index. A target
/// outside 0..C-1 that is not ignore_index is reported in the status word (StatusCode::target_out_of_range, with row
/// and value) and counts 0. The weight alone does not need the log-probabilities: without them (a null pointer) the
/// numerator is 0.
struct NllForward final : Operation {
    explicit NllForward(std::int64_t ignore) : ignore_index(ignore) {}
    std::int64_t ignore_index;
    std::string_view name() const override { return "nll_forward"; }
    bool reports_status() const override { return true; }
    void describe(Signature& s) const override { s.add(ignore_index); }
};
/// in: gradient of the numerator (scalar), target, class weights or undefined; out: dlogp (N, C)
struct NllBackward final : Operation {
    explicit NllBackward(std::int64_t ignore) : ignore_index(ignore) {}
    std::int64_t ignore_index;
    std::string_view name() const override { return "nll_backward"; }
    void describe(Signature& s) const override { s.add(ignore_index); }
};
/// in: a, b (same shape); out: sum of (a - b)^2 (scalar)
struct SquaredErrorForward final : Operation {
    std::string_view name() const override { return "squared_error_forward"; }
};
/// in: gradient (scalar), a, b; out: 2 * gradient * (a - b)
struct SquaredErrorBackward final : Operation {
    std::string_view name() const override { return "squared_error_backward"; }
};
/// in: value (scalar); reports StatusCode::loss_not_finite in the status word; out: value
struct CheckFinite final : Operation {
    std::string_view name() const override { return "check_finite"; }
    bool reports_status() const override { return true; }
};

// ---- across shards --------------------------------------------------------------------------------------------

/// Sums over the present shards along the tree of design: [lo, hi) splits at the largest power of two below its length.
/// in: n tensors, contiguous f32 or f64; out: their n sums, equal on all shards
struct SumOverShards final : Operation {
    std::string_view name() const override { return "sum_over_shards"; }
    Span span() const override { return Span::all_shards; }
};

}  // namespace lockstep
