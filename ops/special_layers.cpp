#include "lockstep/ops/special_layers.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/ops/internal/initial_values.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

double bound(std::int64_t products) { return 1 / std::sqrt(static_cast<double>(products)); }

Tensor conv_transpose1d_weight(std::int64_t in, std::int64_t out, int kernel, const ConvTranspose1dOptions& options) {
    constexpr const char* name = "ConvTranspose1d";
    require_positive(name, "in_channels", in);
    require_positive(name, "out_channels", out);
    require_positive(name, "kernel_size", kernel);
    require_positive(name, "stride", options.stride);
    require_pair(name, "padding", options.padding, 0);
    require_pair(name, "output_padding", options.output_padding, 0);
    require_positive(name, "dilation", options.dilation);
    require_groups(name, in, out, options.groups);
    const std::int64_t channels = out / options.groups;
    return uniform_values({in, channels, kernel}, bound(channels * kernel));
}

Tensor embedding_bag_weight(std::int64_t rows, std::int64_t features) {
    require_positive("EmbeddingBag", "num_embeddings", rows);
    require_positive("EmbeddingBag", "embedding_dim", features);
    return Tensor::randn({rows, features});
}

Tensor bilinear_weight(std::int64_t in1, std::int64_t in2, std::int64_t out) {
    require_positive("Bilinear", "in1_features", in1);
    require_positive("Bilinear", "in2_features", in2);
    require_positive("Bilinear", "out_features", out);
    return uniform_values({out, in1, in2}, bound(in1));
}

}  // namespace

Dropout1d::Dropout1d(double probability) : p(require_probability("Dropout1d", probability)) {}

Tensor Dropout1d::forward(const Tensor& x) const {
    detail::require_listed("Dropout1d", training);
    return dropout1d(x, p, training);
}

Dropout3d::Dropout3d(double probability) : p(require_probability("Dropout3d", probability)) {}

Tensor Dropout3d::forward(const Tensor& x) const {
    detail::require_listed("Dropout3d", training);
    return dropout3d(x, p, training);
}

FeatureAlphaDropout::FeatureAlphaDropout(double probability)
    : p(require_probability("FeatureAlphaDropout", probability)) {}

Tensor FeatureAlphaDropout::forward(const Tensor& x) const {
    detail::require_listed("FeatureAlphaDropout", training);
    return feature_alpha_dropout(x, p, training);
}

AlphaDropout::AlphaDropout(double probability) : p(require_probability("AlphaDropout", probability)) {}

Tensor AlphaDropout::forward(const Tensor& x) const {
    detail::require_listed("AlphaDropout", training);
    return alpha_dropout(x, p, training);
}

InstanceNorm2d::InstanceNorm2d(const char* layer, std::int64_t features, const InstanceNormOptions& options)
    : num_features(features), eps(options.eps) {
    require_positive(layer, "num_features", features);
    if (!options.affine) return;
    weight.emplace(Tensor::full({features}, 1));
    bias.emplace(Tensor::zeros({features}));
}

Tensor InstanceNorm2d::forward(const Tensor& x) const {
    if (x.dims() > 1 && x.size(1) != num_features)
        throw InvalidArgument(fmt::format("instance_norm: input {} has {} channels; expected {}", x.shape().str(),
                                          x.size(1), num_features));
    return instance_norm(x, value_or_none(weight), value_or_none(bias), eps);
}

ConvTranspose1d::ConvTranspose1d(std::int64_t in_channels, std::int64_t out_channels, int kernel_size,
                                 const ConvTranspose1dOptions& how)
    : weight(conv_transpose1d_weight(in_channels, out_channels, kernel_size, how)), options(how) {
    if (options.bias) bias.emplace(uniform_values({out_channels}, bound(out_channels / options.groups * kernel_size)));
}

Tensor ConvTranspose1d::forward(const Tensor& x) const {
    return conv_transpose1d(x, weight, value_or_none(bias), options.stride, options.padding, options.output_padding,
                            options.groups, options.dilation);
}

EmbeddingBag::EmbeddingBag(std::int64_t num_embeddings, std::int64_t embedding_dim, EmbeddingBagMode how)
    : weight(embedding_bag_weight(num_embeddings, embedding_dim)), mode(how) {}

Bilinear::Bilinear(std::int64_t in1_features, std::int64_t in2_features, std::int64_t out_features, bool with_bias)
    : weight(bilinear_weight(in1_features, in2_features, out_features)) {
    if (with_bias) bias.emplace(uniform_values({out_features}, bound(in1_features)));
}

Tensor Bilinear::forward(const Tensor& a, const Tensor& b) const { return bilinear(a, b, weight, value_or_none(bias)); }

}  // namespace lockstep
