// Layers: modules with parameters, or functions with their attributes. Parameters have PyTorch's names, shapes, order
// and initial distributions. They are drawn on the host in f32 from `manual_seed`'s generator, in order of construction
// (`to` in module.h moves and converts a module). Constructors throw InvalidArgument. Shapes and formulas: the
// functions of the same name in functional.h. docs/support.md lists the limits.
//
// Options may be changed between two steps. A wrapper calls `void describe(Signature&) const` of every listed module
// that has it, which adds the values that `forward` reads to the key of programs. Your own modules may have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "lockstep/ops/activation_layers.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// y = x weight^T + bias. torch.nn.Linear. weight (out, in) and bias (out) ~ U(-1/sqrt(in), 1/sqrt(in)).
struct Linear {
    Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias = true);

    Parameter weight;
    std::optional<Parameter> bias;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// Options of Conv2d.
struct Conv2dOptions {
    Pair stride = 1;
    Pair padding = 0;
    Pair dilation = 1;
    std::int64_t groups = 1;  ///< divides both numbers of channels
    bool bias = true;
    PaddingMode padding_mode = PaddingMode::zeros;
};

/// torch.nn.Conv2d. weight (out, in / groups, kh, kw) and bias (out) ~ U(-1/sqrt(n), 1/sqrt(n)), with
/// n = in / groups kh kw.
struct Conv2d {
    Conv2d(std::int64_t in_channels, std::int64_t out_channels, Pair kernel_size, const Conv2dOptions& options = {});

    Parameter weight;
    std::optional<Parameter> bias;
    Pair stride, padding, dilation;
    std::int64_t groups;
    PaddingMode padding_mode;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(stride.h).add(stride.w).add(padding.h).add(padding.w);
        signature.add(dilation.h).add(dilation.w).add(groups).add(padding_mode);
    }
};

/// Options of Conv1d.
struct Conv1dOptions {
    int stride = 1;
    int padding = 0;
    int dilation = 1;
    std::int64_t groups = 1;  ///< divides both numbers of channels
    bool bias = true;
    PaddingMode padding_mode = PaddingMode::zeros;
};

/// torch.nn.Conv1d. weight (out, in / groups, k) and bias (out) ~ U(-1/sqrt(n), 1/sqrt(n)), with n = in / groups k.
struct Conv1d {
    Conv1d(std::int64_t in_channels, std::int64_t out_channels, int kernel_size, const Conv1dOptions& options = {});

    Parameter weight;
    std::optional<Parameter> bias;
    int stride, padding, dilation;
    std::int64_t groups;
    PaddingMode padding_mode;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(stride).add(padding).add(dilation).add(groups).add(padding_mode);
    }
};

/// Options of ConvTranspose2d.
struct ConvTranspose2dOptions {
    Pair stride = 1;
    Pair padding = 0;
    Pair output_padding = 0;
    std::int64_t groups = 1;  ///< divides both numbers of channels
    bool bias = true;
    Pair dilation = 1;
};

/// torch.nn.ConvTranspose2d. weight (in, out / groups, kh, kw) and bias (out) ~ U(-1/sqrt(n), 1/sqrt(n)), with
/// n = out / groups kh kw.
struct ConvTranspose2d {
    ConvTranspose2d(std::int64_t in_channels, std::int64_t out_channels, Pair kernel_size,
                    const ConvTranspose2dOptions& options = {});

    Parameter weight;
    std::optional<Parameter> bias;
    Pair stride, padding, output_padding;
    std::int64_t groups;
    Pair dilation;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(stride.h).add(stride.w).add(padding.h).add(padding.w);
        signature.add(output_padding.h).add(output_padding.w).add(groups).add(dilation.h).add(dilation.w);
    }
};

/// Options of BatchNorm2d.
struct BatchNorm2dOptions {
    double eps = 1e-5;
    double momentum = 0.1;
    bool affine = true;               ///< has weight and bias
    bool track_running_stats = true;  ///< false: evaluation also uses the statistics of the batch
    BatchNormStatistics statistics = BatchNormStatistics::all_shards;
};

/// torch.nn.BatchNorm2d over x (N, features, H, W). weight 1, bias 0, running_mean 0, running_var 1,
/// num_batches_tracked 0 (i64). In training, every call moves the running statistics when the step commits.
struct BatchNorm2d {
    explicit BatchNorm2d(std::int64_t num_features, const BatchNorm2dOptions& how = {})
        : BatchNorm2d("BatchNorm2d", num_features, how) {}

    std::optional<Parameter> weight, bias;
    std::optional<ModuleBuffer> running_mean, running_var, num_batches_tracked;
    BatchNorm2dOptions options;
    bool training = true;
    LOCKSTEP_MEMBERS(weight, bias, running_mean, running_var, num_batches_tracked)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(options.eps).add(options.momentum).add(options.statistics);
    }

protected:
    /// `layer`: its name in messages.
    BatchNorm2d(const char* layer, std::int64_t num_features, const BatchNorm2dOptions& how);
    /// The result for x (N, features, ...).
    Tensor normalized(const Tensor& x) const;
};

/// torch.nn.BatchNorm1d over x (N, features) or (N, features, L); see BatchNorm2d.
struct BatchNorm1d : BatchNorm2d {
    explicit BatchNorm1d(std::int64_t num_features, const BatchNorm2dOptions& how = {})
        : BatchNorm2d("BatchNorm1d", num_features, how) {}

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.BatchNorm3d over x (N, features, D, H, W); see BatchNorm2d.
struct BatchNorm3d : BatchNorm2d {
    explicit BatchNorm3d(std::int64_t num_features, const BatchNorm2dOptions& how = {})
        : BatchNorm2d("BatchNorm3d", num_features, how) {}

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.SyncBatchNorm: normalises with the statistics of the whole batch, over all shards, devices and processes.
/// The bits do not depend on where these are.
struct SyncBatchNorm : BatchNorm2d {
    explicit SyncBatchNorm(std::int64_t num_features, BatchNorm2dOptions o = {})
        : BatchNorm2d("SyncBatchNorm", num_features, (o.statistics = BatchNormStatistics::synchronized, o)) {}
};

/// torch.nn.SyncBatchNorm.convert_sync_batchnorm: all BatchNorm layers of `model`, in place, with their parameters and
/// running statistics. Call it before you wrap the model.
template <class Model>
void convert_sync_batchnorm(Model& model) {
    struct {
        void tensor(detail::NoName, ModuleTensor&, bool) {}
        void training_flag(detail::NoName, bool&) {}
        void module(BatchNorm2d& norm) { norm.options.statistics = BatchNormStatistics::synchronized; }
    } convert;
    detail::visit_module(detail::NoName(), model, convert);
}

/// Options of Embedding.
struct EmbeddingOptions {
    std::optional<std::int64_t> padding_idx =
        std::nullopt;  ///< this row is 0 and is not trained; negative from the end
};

/// torch.nn.Embedding. weight (num_embeddings, embedding_dim) ~ N(0, 1).
struct Embedding {
    Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, const EmbeddingOptions& options = {});

    Parameter weight;
    std::optional<std::int64_t> padding_idx;
    LOCKSTEP_MEMBERS(weight)

    /// input (...) i64; out: (..., embedding_dim).
    Tensor forward(const Tensor& input) const { return embedding(input, weight, padding_idx); }
    Tensor operator()(const Tensor& input) const { return forward(input); }
    void describe(Signature& signature) const { signature.add(padding_idx.has_value()).add(padding_idx.value_or(0)); }
};

/// Options of LayerNorm.
struct LayerNormOptions {
    double eps = 1e-5;
    bool elementwise_affine = true;  ///< has a weight, and a bias if `bias` is set
    bool bias = true;
};

/// torch.nn.LayerNorm over the last dimensions, which are `normalized_shape`. weight 1, bias 0.
struct LayerNorm {
    explicit LayerNorm(const Shape& normalized, const LayerNormOptions& options = {});
    explicit LayerNorm(std::int64_t features, const LayerNormOptions& options = {})
        : LayerNorm(Shape{features}, options) {}

    std::optional<Parameter> weight, bias;
    Shape normalized_shape;
    double eps;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(normalized_shape).add(eps); }
};

/// Options of GroupNorm.
struct GroupNormOptions {
    double eps = 1e-5;
    bool affine = true;  ///< has weight and bias
};

/// torch.nn.GroupNorm over x (N, channels, ...). weight 1, bias 0.
struct GroupNorm {
    GroupNorm(std::int64_t groups, std::int64_t num_channels, const GroupNormOptions& options = {});

    std::optional<Parameter> weight, bias;
    std::int64_t num_groups;
    double eps;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(num_groups).add(eps); }
};

/// Options of RMSNorm.
struct RMSNormOptions {
    std::optional<double> eps = std::nullopt;
    bool elementwise_affine = true;  ///< has a weight
};

/// torch.nn.RMSNorm over the last dimensions, which are `normalized_shape`. weight 1.
struct RMSNorm {
    explicit RMSNorm(const Shape& normalized, const RMSNormOptions& options = {});
    explicit RMSNorm(std::int64_t features, const RMSNormOptions& options = {}) : RMSNorm(Shape{features}, options) {}

    std::optional<Parameter> weight;
    Shape normalized_shape;
    std::optional<double> eps;
    LOCKSTEP_MEMBERS(weight)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(normalized_shape).add(eps.has_value()).add(eps.value_or(0));
    }
};

/// torch.nn.PReLU: a slope for negative numbers, or one for each channel. weight (num_parameters) is `init`.
struct PReLU {
    explicit PReLU(std::int64_t num_parameters = 1, double init = 0.25);

    Parameter weight;
    LOCKSTEP_MEMBERS(weight)

    Tensor forward(const Tensor& x) const { return prelu(x, weight); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Dropout.
struct Dropout : PlainLayer {
    explicit Dropout(double probability = 0.5);

    double p;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(p); }
};

/// torch.nn.Dropout2d: whole channels.
struct Dropout2d : PlainLayer {
    explicit Dropout2d(double probability = 0.5);

    double p;
    bool training = true;

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(p); }
};

/// torch.nn.MaxPool2d; the stride defaults to the window. `round_up` is ceil_mode, `distance` the dilation.
struct MaxPool2d : PlainLayer {
    explicit MaxPool2d(Pair window, std::optional<Pair> step = std::nullopt, Pair pad = 0, bool round_up = false,
                       Pair distance = 1);

    Pair kernel_size, stride, padding, dilation;
    bool ceil_mode;

    Tensor forward(const Tensor& x) const { return max_pool2d(x, kernel_size, stride, padding, ceil_mode, dilation); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(kernel_size.h).add(kernel_size.w);
        signature.add(stride.h).add(stride.w).add(padding.h).add(padding.w).add(ceil_mode);
        signature.add(dilation.h).add(dilation.w);
    }
};

/// torch.nn.AvgPool2d; the stride defaults to the window. `with_padding` is count_include_pad, `round_up` ceil_mode,
/// `divisor` divisor_override.
struct AvgPool2d : PlainLayer {
    explicit AvgPool2d(Pair window, std::optional<Pair> step = std::nullopt, Pair pad = 0, bool with_padding = true,
                       bool round_up = false, std::optional<std::int64_t> divisor = std::nullopt);

    Pair kernel_size, stride, padding;
    bool count_include_pad, ceil_mode;
    std::optional<std::int64_t> divisor_override;

    Tensor forward(const Tensor& x) const {
        return avg_pool2d(x, kernel_size, stride, padding, count_include_pad, ceil_mode, divisor_override);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(kernel_size.h).add(kernel_size.w).add(count_include_pad).add(ceil_mode);
        signature.add(divisor_override.has_value()).add(divisor_override.value_or(0));
        signature.add(stride.h).add(stride.w).add(padding.h).add(padding.w);
    }
};

/// torch.nn.AdaptiveAvgPool2d.
struct AdaptiveAvgPool2d : PlainLayer {
    explicit AdaptiveAvgPool2d(Pair size);

    Pair output_size;

    Tensor forward(const Tensor& x) const { return adaptive_avg_pool2d(x, output_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(output_size.h).add(output_size.w); }
};

/// torch.nn.MaxPool1d; the stride defaults to the window.
struct MaxPool1d : PlainLayer {
    explicit MaxPool1d(int window, std::optional<int> step = std::nullopt, int pad = 0, bool round_up = false,
                       int distance = 1);

    int kernel_size, stride, padding, dilation;
    bool ceil_mode;

    Tensor forward(const Tensor& x) const { return max_pool1d(x, kernel_size, stride, padding, ceil_mode, dilation); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(kernel_size).add(stride).add(padding).add(ceil_mode).add(dilation);
    }
};

/// torch.nn.Upsample.
struct Upsample : PlainLayer {
    explicit Upsample(const InterpolateOptions& how) : options(how) {}

    InterpolateOptions options;

    Tensor forward(const Tensor& x) const { return interpolate(x, options); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const;
};

/// torch.nn.Identity.
struct Identity : PlainLayer {
    Tensor forward(const Tensor& x) const { return x; }
    Tensor operator()(const Tensor& x) const { return forward(x); }
};

/// torch.nn.Flatten: by default all dimensions after the batch.
struct Flatten : PlainLayer {
    explicit Flatten(int start = 1, int end = -1) : start_dim(start), end_dim(end) {}

    int start_dim, end_dim;

    Tensor forward(const Tensor& x) const { return flatten(x, start_dim, end_dim); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { signature.add(start_dim).add(end_dim); }
};

/// Layers one after another, named "0", "1", ... torch.nn.Sequential.
template <class... Layers>
struct Sequential {
    explicit Sequential(Layers... list) : layers(std::move(list)...) {}

    std::tuple<Layers...> layers;

    template <class Visit>
    void lockstep_members(Visit&& visit) {
        std::apply(
            [&visit](Layers&... layer) {
                std::size_t index = 0;
                (visit(std::to_string(index++), layer), ...);
            },
            layers);
    }

    Tensor forward(const Tensor& x) {
        return std::apply(
            [&x](Layers&... layer) {
                Tensor y = x;
                ((y = layer.forward(y)), ...);
                return y;
            },
            layers);
    }
    Tensor operator()(const Tensor& x) { return forward(x); }
};

}  // namespace lockstep
