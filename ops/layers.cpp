#include "lockstep/ops/layers.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/initial_values.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

void require_positive(const char* layer, const char* argument, std::int64_t value) {
    if (value < 1)
        throw InvalidArgument(fmt::format("{}: invalid {} ({}); expected a positive number", layer, argument, value));
}

void require_pair(const char* layer, const char* argument, Pair value, int least) {
    if (value.h < least || value.w < least)
        throw InvalidArgument(
            fmt::format("{}: invalid {} ({}, {}); expected at least {}", layer, argument, value.h, value.w, least));
}

void require_groups(const char* layer, std::int64_t in, std::int64_t out, std::int64_t groups) {
    require_positive(layer, "groups", groups);
    const auto require_multiple = [&](const char* argument, std::int64_t channels) {
        if (channels % groups != 0)
            throw InvalidArgument(fmt::format("{}: invalid {} ({}); expected a multiple of groups ({})", layer,
                                              argument, channels, groups));
    };
    require_multiple("in_channels", in);
    require_multiple("out_channels", out);
}

double require_probability(const char* layer, double p) {
    if (!(p >= 0 && p <= 1))
        throw InvalidArgument(fmt::format("{}: invalid probability ({}); expected [0, 1]", layer, p));
    return p;
}

Tensor uniform_values(const Shape& shape, double bound) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    const auto limit = static_cast<float>(bound);
    host_uniform(values.data(), shape.numel(), -limit, limit);
    return Tensor::from(values, shape);
}

namespace {

/// PyTorch's initial values for weights and biases, kaiming_uniform(a = sqrt(5)): U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
Tensor uniform(const Shape& shape, std::int64_t fan_in) {
    return uniform_values(shape, 1 / std::sqrt(static_cast<double>(fan_in)));
}

Tensor linear_weight(std::int64_t in, std::int64_t out) {
    require_positive("Linear", "in_features", in);
    require_positive("Linear", "out_features", out);
    return uniform({out, in}, in);
}

Tensor conv_weight(std::int64_t in, std::int64_t out, Pair kernel, const Conv2dOptions& options) {
    require_positive("Conv2d", "in_channels", in);
    require_positive("Conv2d", "out_channels", out);
    require_pair("Conv2d", "kernel_size", kernel, 1);
    require_pair("Conv2d", "stride", options.stride, 1);
    require_pair("Conv2d", "padding", options.padding, 0);
    require_pair("Conv2d", "dilation", options.dilation, 1);
    require_groups("Conv2d", in, out, options.groups);
    const std::int64_t channels = in / options.groups;
    return uniform({out, channels, kernel.h, kernel.w}, channels * kernel.h * kernel.w);
}

Tensor conv1d_weight(std::int64_t in, std::int64_t out, int kernel, const Conv1dOptions& options) {
    require_positive("Conv1d", "in_channels", in);
    require_positive("Conv1d", "out_channels", out);
    require_positive("Conv1d", "kernel_size", kernel);
    require_positive("Conv1d", "stride", options.stride);
    require_pair("Conv1d", "padding", options.padding, 0);
    require_positive("Conv1d", "dilation", options.dilation);
    require_groups("Conv1d", in, out, options.groups);
    const std::int64_t channels = in / options.groups;
    return uniform({out, channels, kernel}, channels * kernel);
}

Tensor conv_transpose_weight(std::int64_t in, std::int64_t out, Pair kernel, const ConvTranspose2dOptions& options) {
    require_positive("ConvTranspose2d", "in_channels", in);
    require_positive("ConvTranspose2d", "out_channels", out);
    require_pair("ConvTranspose2d", "kernel_size", kernel, 1);
    require_pair("ConvTranspose2d", "stride", options.stride, 1);
    require_pair("ConvTranspose2d", "padding", options.padding, 0);
    require_pair("ConvTranspose2d", "output_padding", options.output_padding, 0);
    require_pair("ConvTranspose2d", "dilation", options.dilation, 1);
    require_groups("ConvTranspose2d", in, out, options.groups);
    const std::int64_t channels = out / options.groups;
    return uniform({in, channels, kernel.h, kernel.w}, channels * kernel.h * kernel.w);
}

Tensor embedding_weight(std::int64_t rows, std::int64_t features, const EmbeddingOptions& options) {
    require_positive("Embedding", "num_embeddings", rows);
    require_positive("Embedding", "embedding_dim", features);
    const Tensor weight = Tensor::randn({rows, features});
    if (const auto padding = options.padding_idx) {
        if (*padding < -rows || *padding >= rows)
            throw InvalidArgument(fmt::format("Embedding: padding_idx is {} for {} embeddings; expected {} to {}",
                                              *padding, rows, -rows, rows - 1));
        weight.select(0, *padding < 0 ? *padding + rows : *padding).fill_(0);
    }
    return weight;
}

}  // namespace

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias)
    : weight(linear_weight(in_features, out_features)) {
    if (with_bias) bias.emplace(uniform({out_features}, in_features));
}

Tensor Linear::forward(const Tensor& x) const { return linear(x, weight, value_or_none(bias)); }

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, Pair kernel_size, const Conv2dOptions& options)
    : weight(conv_weight(in_channels, out_channels, kernel_size, options)),
      stride(options.stride),
      padding(options.padding),
      dilation(options.dilation),
      groups(options.groups),
      padding_mode(options.padding_mode) {
    if (options.bias) bias.emplace(uniform({out_channels}, in_channels / groups * kernel_size.h * kernel_size.w));
}

Tensor Conv2d::forward(const Tensor& x) const {
    if (padding_mode != PaddingMode::zeros) {
        const Tensor wide = pad(x, {padding.w, padding.w, padding.h, padding.h}, padding_mode);
        return conv2d(wide, weight, value_or_none(bias), stride, 0, dilation, groups);
    }
    return conv2d(x, weight, value_or_none(bias), stride, padding, dilation, groups);
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in_channels, std::int64_t out_channels, Pair kernel_size,
                                 const ConvTranspose2dOptions& options)
    : weight(conv_transpose_weight(in_channels, out_channels, kernel_size, options)),
      stride(options.stride),
      padding(options.padding),
      output_padding(options.output_padding),
      groups(options.groups),
      dilation(options.dilation) {
    if (options.bias) bias.emplace(uniform({out_channels}, out_channels / groups * kernel_size.h * kernel_size.w));
}

Tensor ConvTranspose2d::forward(const Tensor& x) const {
    return conv_transpose2d(x, weight, value_or_none(bias), stride, padding, output_padding, groups, dilation);
}

BatchNorm2d::BatchNorm2d(const char* layer, std::int64_t num_features, const BatchNorm2dOptions& how) : options(how) {
    require_positive(layer, "num_features", num_features);
    if (!(options.eps > 0))
        throw InvalidArgument(fmt::format("{}: invalid eps ({}); expected a positive number", layer, options.eps));
    if (!(options.momentum >= 0 && options.momentum <= 1))
        throw InvalidArgument(fmt::format("{}: invalid momentum ({}); expected [0, 1]", layer, options.momentum));
    if (options.affine) {
        weight.emplace(Tensor::full({num_features}, 1));
        bias.emplace(Tensor::zeros({num_features}));
    }
    if (options.track_running_stats) {
        running_mean.emplace(Tensor::zeros({num_features}));
        running_var.emplace(Tensor::full({num_features}, 1));
        num_batches_tracked.emplace(Tensor::zeros({}, DType::i64));
    }
}

Tensor BatchNorm2d::forward(const Tensor& x) const {
    checks::dims("batch_norm", "input", x, 4, "(N, C, H, W)");
    return normalized(x);
}

Tensor BatchNorm1d::forward(const Tensor& x) const {
    if (x.dims() != 3) checks::dims("batch_norm", "input", x, 2, "(N, C) or (N, C, L)");
    return normalized(x);
}

Tensor BatchNorm3d::forward(const Tensor& x) const {
    checks::dims("batch_norm", "input", x, 5, "(N, C, D, H, W)");
    return normalized(x);
}

Tensor BatchNorm2d::normalized(const Tensor& x) const {
    const Tensor y = batch_norm(x, value_or_none(running_mean), value_or_none(running_var), value_or_none(weight),
                                value_or_none(bias), {training, options.momentum, options.eps, options.statistics});
    if (training && num_batches_tracked) {
        eager_reports::carry(x, num_batches_tracked->tensor());  // counts the same steps as the running statistics
        apply(make_operation(IncrementCounter{}), {}, {num_batches_tracked->tensor()});
    }
    return y;
}

LayerNorm::LayerNorm(const Shape& normalized, const LayerNormOptions& options)
    : normalized_shape(normalized), eps(options.eps) {
    if (normalized.empty())
        throw InvalidArgument("LayerNorm: normalized_shape has no dimensions; expected at least one");
    for (const std::int64_t size : normalized) require_positive("LayerNorm", "a size of normalized_shape", size);
    if (!(eps >= 0)) throw InvalidArgument(fmt::format("LayerNorm: invalid eps ({}); expected 0 or more", eps));
    if (options.elementwise_affine) weight.emplace(Tensor::full(normalized, 1));
    if (options.elementwise_affine && options.bias) bias.emplace(Tensor::zeros(normalized));
}

Tensor LayerNorm::forward(const Tensor& x) const {
    return layer_norm(x, normalized_shape, value_or_none(weight), value_or_none(bias), eps);
}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t num_channels, const GroupNormOptions& options)
    : num_groups(groups), eps(options.eps) {
    require_positive("GroupNorm", "num_groups", groups);
    require_positive("GroupNorm", "num_channels", num_channels);
    if (num_channels % groups != 0)
        throw InvalidArgument(fmt::format("GroupNorm: cannot divide {} channels into {} groups; expected a divisor",
                                          num_channels, groups));
    if (!options.affine) return;
    weight.emplace(Tensor::full({num_channels}, 1));
    bias.emplace(Tensor::zeros({num_channels}));
}

Tensor GroupNorm::forward(const Tensor& x) const {
    return group_norm(x, num_groups, value_or_none(weight), value_or_none(bias), eps);
}

RMSNorm::RMSNorm(const Shape& normalized, const RMSNormOptions& options)
    : normalized_shape(normalized), eps(options.eps) {
    if (normalized.empty()) throw InvalidArgument("RMSNorm: normalized_shape has no dimensions; expected at least one");
    for (const std::int64_t size : normalized) require_positive("RMSNorm", "a size of normalized_shape", size);
    if (options.elementwise_affine) weight.emplace(Tensor::full(normalized, 1));
}

Tensor RMSNorm::forward(const Tensor& x) const { return rms_norm(x, normalized_shape, value_or_none(weight), eps); }

Conv1d::Conv1d(std::int64_t in_channels, std::int64_t out_channels, int kernel_size, const Conv1dOptions& options)
    : weight(conv1d_weight(in_channels, out_channels, kernel_size, options)),
      stride(options.stride),
      padding(options.padding),
      dilation(options.dilation),
      groups(options.groups),
      padding_mode(options.padding_mode) {
    if (options.bias) bias.emplace(uniform({out_channels}, in_channels / groups * kernel_size));
}

Tensor Conv1d::forward(const Tensor& x) const {
    if (padding_mode != PaddingMode::zeros)
        return conv1d(pad(x, {padding, padding}, padding_mode), weight, value_or_none(bias), stride, 0, dilation,
                      groups);
    return conv1d(x, weight, value_or_none(bias), stride, padding, dilation, groups);
}

PReLU::PReLU(std::int64_t num_parameters, double init) : weight(Tensor::full({num_parameters}, init)) {
    require_positive("PReLU", "num_parameters", num_parameters);
}

Embedding::Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, const EmbeddingOptions& options)
    : weight(embedding_weight(num_embeddings, embedding_dim, options)), padding_idx(options.padding_idx) {}

Dropout::Dropout(double probability) : p(require_probability("Dropout", probability)) {}

Tensor Dropout::forward(const Tensor& x) const {
    detail::require_listed("Dropout", training);
    return dropout(x, p, training);
}

Tensor Softmax2d::forward(const Tensor& x) const {
    checks::dims("Softmax2d", "input", x, 4, "(N, C, H, W)");
    return softmax(x, 1);
}

Tensor RReLU::forward(const Tensor& x) const {
    detail::require_listed("RReLU", training);
    return rrelu(x, lower, upper, training);
}

Dropout2d::Dropout2d(double probability) : p(require_probability("Dropout2d", probability)) {}

Tensor Dropout2d::forward(const Tensor& x) const {
    detail::require_listed("Dropout2d", training);
    return dropout2d(x, p, training);
}

MaxPool2d::MaxPool2d(Pair window, std::optional<Pair> step, Pair pad, bool round_up, Pair distance)
    : kernel_size(window), stride(step.value_or(window)), padding(pad), dilation(distance), ceil_mode(round_up) {
    require_pair("MaxPool2d", "dilation", dilation, 1);
    require_pair("MaxPool2d", "kernel_size", kernel_size, 1);
    require_pair("MaxPool2d", "stride", stride, 1);
    require_pair("MaxPool2d", "padding", padding, 0);
}

AvgPool2d::AvgPool2d(Pair window, std::optional<Pair> step, Pair pad, bool with_padding, bool round_up,
                     std::optional<std::int64_t> divisor)
    : kernel_size(window),
      stride(step.value_or(window)),
      padding(pad),
      count_include_pad(with_padding),
      ceil_mode(round_up),
      divisor_override(divisor) {
    require_pair("AvgPool2d", "kernel_size", kernel_size, 1);
    require_pair("AvgPool2d", "stride", stride, 1);
    require_pair("AvgPool2d", "padding", padding, 0);
}

AdaptiveAvgPool2d::AdaptiveAvgPool2d(Pair size) : output_size(size) {
    require_pair("AdaptiveAvgPool2d", "output_size", size, 1);
}

MaxPool1d::MaxPool1d(int window, std::optional<int> step, int pad, bool round_up, int distance)
    : kernel_size(window), stride(step.value_or(window)), padding(pad), dilation(distance), ceil_mode(round_up) {
    require_positive("MaxPool1d", "dilation", dilation);
    require_positive("MaxPool1d", "kernel_size", kernel_size);
    require_positive("MaxPool1d", "stride", stride);
    require_pair("MaxPool1d", "padding", padding, 0);
}

void Upsample::describe(Signature& signature) const {
    const InterpolateSize size = options.size.value_or(InterpolateSize(0));
    const ScaleFactor scale = options.scale_factor.value_or(ScaleFactor(0));
    signature.add(size.d).add(size.h).add(size.w).add(scale.d).add(scale.h).add(scale.w);
    signature.add(options.mode).add(options.align_corners);
}

}  // namespace lockstep
