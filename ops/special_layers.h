// Layers that fewer networks have than those of layers.h: shuffles, distances, and rarer forms of pooling,
// normalisation and dropout. Names and arguments are those of torch.nn.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// torch.nn.Dropout1d: whole channels of x (N, C, L).
struct Dropout1d : PlainLayer {
    explicit Dropout1d(double probability = 0.5);

    double p;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(p); }
};

/// torch.nn.Dropout3d: whole channels of x (N, C, D, H, W).
struct Dropout3d : PlainLayer {
    explicit Dropout3d(double probability = 0.5);

    double p;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(p); }
};

/// torch.nn.AlphaDropout.
struct AlphaDropout : PlainLayer {
    explicit AlphaDropout(double probability = 0.5);

    double p;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(p); }
};

/// torch.nn.FeatureAlphaDropout: whole channels of x (N, C, ...).
struct FeatureAlphaDropout : PlainLayer {
    explicit FeatureAlphaDropout(double probability = 0.5);

    double p;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(p); }
};

/// torch.nn.PixelShuffle.
struct PixelShuffle : PlainLayer {
    explicit PixelShuffle(int factor) : upscale_factor(factor) {}

    int upscale_factor;

    Tensor forward(const Tensor& x) const { return pixel_shuffle(x, upscale_factor); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(upscale_factor); }
};

/// torch.nn.PixelUnshuffle.
struct PixelUnshuffle : PlainLayer {
    explicit PixelUnshuffle(int factor) : downscale_factor(factor) {}

    int downscale_factor;

    Tensor forward(const Tensor& x) const { return pixel_unshuffle(x, downscale_factor); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(downscale_factor); }
};

/// torch.nn.ChannelShuffle.
struct ChannelShuffle : PlainLayer {
    explicit ChannelShuffle(int number) : groups(number) {}

    int groups;

    Tensor forward(const Tensor& x) const { return channel_shuffle(x, groups); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(groups); }
};

/// torch.nn.AdaptiveMaxPool2d.
struct AdaptiveMaxPool2d : PlainLayer {
    explicit AdaptiveMaxPool2d(Pair size) : output_size(size) {}

    Pair output_size;

    Tensor forward(const Tensor& x) const { return adaptive_max_pool2d(x, output_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(output_size.h).add(output_size.w); }
};

/// torch.nn.AdaptiveMaxPool1d.
struct AdaptiveMaxPool1d : PlainLayer {
    explicit AdaptiveMaxPool1d(int size) : output_size(size) {}

    int output_size;

    Tensor forward(const Tensor& x) const { return adaptive_max_pool1d(x, output_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(output_size); }
};

/// torch.nn.AdaptiveAvgPool1d.
struct AdaptiveAvgPool1d : PlainLayer {
    explicit AdaptiveAvgPool1d(int size) : output_size(size) {}

    int output_size;

    Tensor forward(const Tensor& x) const { return adaptive_avg_pool1d(x, output_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(output_size); }
};

/// torch.nn.AvgPool1d; the stride defaults to the window.
struct AvgPool1d : PlainLayer {
    explicit AvgPool1d(int window, std::optional<int> step = std::nullopt, int pad = 0, bool with_padding = true,
                       bool round_up = false)
        : kernel_size(window),
          stride(step.value_or(window)),
          padding(pad),
          count_include_pad(with_padding),
          ceil_mode(round_up) {}

    int kernel_size, stride, padding;
    bool count_include_pad, ceil_mode;

    Tensor forward(const Tensor& x) const {
        return avg_pool1d(x, kernel_size, stride, padding, count_include_pad, ceil_mode);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(kernel_size).add(stride).add(padding).add(count_include_pad).add(ceil_mode);
    }
};

/// torch.nn.MaxUnpool1d, of x and the indices of max_pool1d_with_indices; the stride defaults to the window.
struct MaxUnpool1d : PlainLayer {
    explicit MaxUnpool1d(int window, std::optional<int> step = std::nullopt, int pad = 0)
        : kernel_size(window), stride(step.value_or(window)), padding(pad) {}

    int kernel_size, stride, padding;

    Tensor forward(const Tensor& x, const Tensor& indices, std::optional<int> output_size = std::nullopt) const {
        return max_unpool1d(x, indices, kernel_size, stride, padding, output_size);
    }
    Tensor operator()(const Tensor& x, const Tensor& indices) const { return forward(x, indices); }
    void describe(Signature& signature) const { signature.add(kernel_size).add(stride).add(padding); }
};

/// torch.nn.MaxUnpool2d, of x and the indices of max_pool2d_with_indices; the stride defaults to the window.
struct MaxUnpool2d : PlainLayer {
    explicit MaxUnpool2d(Pair window, std::optional<Pair> step = std::nullopt, Pair pad = 0)
        : kernel_size(window), stride(step.value_or(window)), padding(pad) {}

    Pair kernel_size, stride, padding;

    Tensor forward(const Tensor& x, const Tensor& indices, std::optional<Pair> output_size = std::nullopt) const {
        return max_unpool2d(x, indices, kernel_size, stride, padding, output_size);
    }
    Tensor operator()(const Tensor& x, const Tensor& indices) const { return forward(x, indices); }
    void describe(Signature& signature) const {
        signature.add(kernel_size.h).add(kernel_size.w).add(stride.h).add(stride.w).add(padding.h).add(padding.w);
    }
};

/// torch.nn.LPPool1d; the stride defaults to the window. `round_up` is ceil_mode.
struct LPPool1d : PlainLayer {
    explicit LPPool1d(double order, int window, std::optional<int> step = std::nullopt, bool round_up = false)
        : norm_type(order), kernel_size(window), stride(step.value_or(window)), ceil_mode(round_up) {}

    double norm_type;
    int kernel_size, stride;
    bool ceil_mode;

    Tensor forward(const Tensor& x) const { return lp_pool1d(x, norm_type, kernel_size, stride, ceil_mode); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(norm_type).add(kernel_size).add(stride).add(ceil_mode); }
};

/// torch.nn.LPPool2d; the stride defaults to the window. `round_up` is ceil_mode.
struct LPPool2d : PlainLayer {
    explicit LPPool2d(double order, Pair window, std::optional<Pair> step = std::nullopt, bool round_up = false)
        : norm_type(order), kernel_size(window), stride(step.value_or(window)), ceil_mode(round_up) {}

    double norm_type;
    Pair kernel_size, stride;
    bool ceil_mode;

    Tensor forward(const Tensor& x) const { return lp_pool2d(x, norm_type, kernel_size, stride, ceil_mode); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(norm_type).add(kernel_size.h).add(kernel_size.w).add(stride.h).add(stride.w).add(ceil_mode);
    }
};

/// torch.nn.LocalResponseNorm.
struct LocalResponseNorm : PlainLayer {
    explicit LocalResponseNorm(int channels, double factor = 1e-4, double exponent = 0.75, double summand = 1)
        : size(channels), alpha(factor), beta(exponent), k(summand) {}

    int size;
    double alpha, beta, k;

    Tensor forward(const Tensor& x) const { return local_response_norm(x, size, alpha, beta, k); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(size).add(alpha).add(beta).add(k); }
};

/// torch.nn.Unflatten: dimension `dim` as several of the given sizes, one of which may be -1.
struct Unflatten : PlainLayer {
    Unflatten(int along, const Shape& sizes) : dim(along), unflattened_size(sizes) {}

    int dim;
    Shape unflattened_size;

    Tensor forward(const Tensor& x) const { return unflatten(x, dim, unflattened_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(dim);
        for (const std::int64_t size : unflattened_size) signature.add(size);
    }
};

/// torch.nn.CosineSimilarity.
struct CosineSimilarity : PlainLayer {
    explicit CosineSimilarity(int along = 1, double smallest = 1e-8) : dim(along), eps(smallest) {}

    int dim;
    double eps;

    Tensor forward(const Tensor& a, const Tensor& b) const { return cosine_similarity(a, b, dim, eps); }
    Tensor operator()(const Tensor& a, const Tensor& b) const { return forward(a, b); }
    void describe(Signature& signature) const { signature.add(dim).add(eps); }
};

/// torch.nn.PairwiseDistance.
struct PairwiseDistance : PlainLayer {
    explicit PairwiseDistance(double order = 2, double summand = 1e-6, bool keep = false)
        : p(order), eps(summand), keepdim(keep) {}

    double p, eps;
    bool keepdim;

    Tensor forward(const Tensor& a, const Tensor& b) const { return pairwise_distance(a, b, p, eps, keepdim); }
    Tensor operator()(const Tensor& a, const Tensor& b) const { return forward(a, b); }
    void describe(Signature& signature) const { signature.add(p).add(eps).add(keepdim); }
};

/// Options of InstanceNorm2d.
struct InstanceNormOptions {
    double eps = 1e-5;
    bool affine = false;  ///< has weight and bias
};

/// torch.nn.InstanceNorm2d over x (N, features, H, W), without running statistics. weight 1, bias 0.
struct InstanceNorm2d {
    explicit InstanceNorm2d(std::int64_t features, const InstanceNormOptions& options = {})
        : InstanceNorm2d("InstanceNorm2d", features, options) {}

    std::optional<Parameter> weight, bias;
    std::int64_t num_features;
    double eps;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(num_features).add(eps); }

protected:
    /// `layer`: its name in messages.
    InstanceNorm2d(const char* layer, std::int64_t features, const InstanceNormOptions& options);
};

/// torch.nn.InstanceNorm1d over x (N, features, L).
struct InstanceNorm1d : InstanceNorm2d {
    explicit InstanceNorm1d(std::int64_t features, const InstanceNormOptions& options = {})
        : InstanceNorm2d("InstanceNorm1d", features, options) {}
};

/// torch.nn.InstanceNorm3d over x (N, features, D, H, W).
struct InstanceNorm3d : InstanceNorm2d {
    explicit InstanceNorm3d(std::int64_t features, const InstanceNormOptions& options = {})
        : InstanceNorm2d("InstanceNorm3d", features, options) {}
};

/// Options of ConvTranspose1d.
struct ConvTranspose1dOptions {
    int stride = 1;
    int padding = 0;
    int output_padding = 0;
    std::int64_t groups = 1;  ///< divides both numbers of channels
    bool bias = true;
    int dilation = 1;
};

/// torch.nn.ConvTranspose1d. weight (in, out / groups, k) and bias (out) ~ U(-1/sqrt(n), 1/sqrt(n)), with n = out /
/// groups k.
struct ConvTranspose1d {
    ConvTranspose1d(std::int64_t in_channels, std::int64_t out_channels, int kernel_size,
                    const ConvTranspose1dOptions& options = {});

    Parameter weight;
    std::optional<Parameter> bias;
    ConvTranspose1dOptions options;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(options.stride).add(options.padding).add(options.output_padding);
        signature.add(options.groups).add(options.dilation);
    }
};

/// torch.nn.EmbeddingBag of indices (B, L). weight (num_embeddings, embedding_dim) ~ N(0, 1).
struct EmbeddingBag {
    EmbeddingBag(std::int64_t num_embeddings, std::int64_t embedding_dim,
                 EmbeddingBagMode how = EmbeddingBagMode::mean);

    Parameter weight;
    EmbeddingBagMode mode;
    LOCKSTEP_MEMBERS(weight)

    Tensor forward(const Tensor& input) const { return embedding_bag(input, weight, mode); }
    Tensor operator()(const Tensor& input) const { return forward(input); }
    void describe(Signature& signature) const { signature.add(mode); }
};

/// torch.nn.Bilinear. weight (out, in1, in2) and bias (out) ~ U(-1/sqrt(in1), 1/sqrt(in1)).
struct Bilinear {
    Bilinear(std::int64_t in1_features, std::int64_t in2_features, std::int64_t out_features, bool with_bias = true);

    Parameter weight;
    std::optional<Parameter> bias;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& a, const Tensor& b) const;
    Tensor operator()(const Tensor& a, const Tensor& b) const { return forward(a, b); }
};

}  // namespace lockstep
