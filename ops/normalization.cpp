#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

constexpr const char* op_name = "batch_norm";

/// Number of elements of a channel of x (N, C, ...).
std::int64_t channel_size(const Tensor& x) {
    std::int64_t size = 1;
    for (int dim = 2; dim < x.dims(); ++dim) size *= x.size(dim);
    return size;
}

/// Running statistics in the form of BatchNormStats: a sample of one with mean and M2 = variance.
Tensor stats_of(const Tensor& mean, const Tensor& variance) {
    const Tensor one = Tensor::full({1}, 1, mean.dtype(), mean.device());
    const NoGrad no_grad;
    return cat({mean, variance, one});
}

bool synchronized(const BatchNormOptions& options) { return options.statistics == BatchNormStatistics::synchronized; }

/// `stats` of this shard, pooled over the shards as requested.
Tensor pooled(const Tensor& stats, const BatchNormOptions& options) {
    return apply_one(BatchNormPoolStats{options.statistics == BatchNormStatistics::shard0}, {stats}, like(stats));
}

/// Moves the running statistics towards `stats`, which are this shard's, or pooled already if synchronized.
void update_running(const Tensor& stats, const Tensor& mean, const Tensor& variance, const BatchNormOptions& options) {
    const NoGrad no_grad;
    apply(make_operation(BatchNormUpdateRunning{options.momentum}),
          {synchronized(options) ? stats : pooled(stats, options)}, {mean, variance});
}

void check(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& weight, const Tensor& bias,
           const BatchNormOptions& options) {
    const struct {
        const char* name;
        const Tensor& tensor;
    } vectors[] = {{"running_mean", mean}, {"running_var", variance}, {"weight", weight}, {"bias", bias}};
    for (const auto& [name, tensor] : vectors) checks::vector_of(op_name, name, tensor, x.size(1), "channel");
    if (mean.defined() != variance.defined())
        throw InvalidArgument(
            "batch_norm: only one of running_mean and running_var is defined; expected both or neither");
    if (!(options.eps > 0))
        throw InvalidArgument(fmt::format("batch_norm: invalid eps ({}); expected a positive number", options.eps));
    if (!(options.momentum >= 0 && options.momentum <= 1))
        throw InvalidArgument(fmt::format("batch_norm: invalid momentum ({}); expected [0, 1]", options.momentum));
    if ((options.training || !mean.defined()) && !synchronized(options) && x.size(0) * channel_size(x) <= 1)
        throw InvalidArgument(fmt::format(
            "batch_norm: input {} has at most one value per channel; expected more rows per shard in training",
            x.shape().str()));
}

}  // namespace

namespace {

/// Gradients of batch_norm with respect to x (N, C, H, W), weight and bias, computed by functions with gradients.
/// `running`: the statistics, in the form of BatchNormStats, or undefined for those of x, pooled over all shards if
/// `across_shards`.
std::vector<Tensor> differentiable_batch_gradients(const Tensor& given_dy, const Tensor& given_x, const Tensor& weight,
                                                   const Tensor& running, bool across_shards, double eps) {
    const Tensor x = widened(given_x), dy = widened(given_dy);
    const std::int64_t channels = x.size(1);
    const Shape each{1, channels, 1, 1};
    const auto total = [across_shards](const Tensor& e) {
        const Tensor of_shard = sum(e, {0, 2, 3}, true);
        return across_shards ? sum_over_shards(of_shard) : of_shard;
    };
    Tensor count, mean, variance;
    if (running.defined()) {
        mean = running.slice(0, 0, channels).reshape(each);
        variance = running.slice(0, channels, 2 * channels).reshape(each);
    } else {
        const double of_shard = static_cast<double>(x.size(0) * channel_size(x));
        count = Tensor::full({1, 1, 1, 1}, of_shard, x.dtype(), x.device());
        if (across_shards) count = sum_over_shards(count);
        mean = total(x) / count;
        variance = total(square(x - mean)) / count;
    }
    const Tensor deviation = rsqrt(variance + eps), normal = (x - mean) * deviation;
    const Tensor scaled = weight.defined() ? dy * widened(weight).reshape(each) : dy;
    Tensor dx = scaled;
    if (!running.defined()) dx = scaled - total(scaled) / count - normal * (total(scaled * normal) / count);
    dx = tagged((dx * deviation).to(given_x.dtype()), given_x.is_batch());
    return {dx, sum(dy * normal, {0, 2, 3}), sum(dy, {0, 2, 3})};
}

/// The batch normalisation of images, after all checks.
Tensor normalized_images(const Tensor& x, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                         const Tensor& bias, const BatchNormOptions& options) {
    const std::int64_t channels = x.size(1);
    const bool own_stats = options.training || !running_mean.defined();
    // Statistics and sums of gradients of f16 and bf16 are f32; parameters may be, as in PyTorch.
    const DType wide = is_half_type(x.dtype()) ? DType::f32 : x.dtype();
    for (const Tensor* running : {&running_mean, &running_var})
        if (options.training && running->defined() && running->dtype() != wide)
            throw InvalidArgument(
                fmt::format("batch_norm: running statistics of {} cannot be trained with an input of {}; expected {} "
                            "(use .to(dtype))",
                            name_of(running->dtype()), name_of(x.dtype()), name_of(wide)));
    const TensorMeta stats_meta = TensorMeta::contiguous(wide, {2 * channels + 1});
    Tensor stats = own_stats ? apply_one(BatchNormStats{}, {x.detach()}, stats_meta)
                             : stats_of(running_mean.to(wide), running_var.to(wide));
    const bool across_shards = own_stats && synchronized(options);
    if (across_shards) stats = pooled(stats, options);
    const Tensor y = apply_one(BatchNormNormalize{options.eps}, {x, stats, weight, bias}, like(x));
    if (options.training && running_mean.defined()) update_running(stats, running_mean, running_var, options);
    if (!needs_autograd({x, weight, bias})) return y;

    const bool x_wanted = x.requires_grad();
    const bool weight_wanted = weight.defined() && weight.requires_grad();
    const bool bias_wanted = bias.defined() && bias.requires_grad();
    const DType weight_dtype = weight_wanted ? weight.dtype() : wide, bias_dtype = bias_wanted ? bias.dtype() : wide;
    add_autograd_node(
        op_name, {x, weight, bias}, {y},
        BackwardFunction::composed([=, input = SavedTensor(x, op_name), scale = SavedTensor(weight, op_name),
                                    saved_stats = SavedTensor(stats, op_name), eps = options.eps,
                                    dx = like(x)](const std::vector<Tensor>& gradients) {
            const Tensor& dy = gradients[0];
            if (grad_enabled()) {
                auto all = differentiable_batch_gradients(dy, input.get(), scale.get(),
                                                          own_stats ? Tensor() : saved_stats.get(), across_shards, eps);
                if (weight_wanted) all[1] = all[1].to(weight_dtype);
                if (bias_wanted) all[2] = all[2].to(bias_dtype);
                return all;
            }
            std::vector<Tensor> result(3);
            Tensor sums;
            if (own_stats || weight_wanted || bias_wanted) {
                const Output of_channels = TensorMeta::contiguous(wide, {channels});
                const auto made =
                    apply(make_operation(BatchNormBackwardSums{eps}), {input.get(), dy, saved_stats.get()},
                          {TensorMeta::contiguous(wide, {2 * channels}), bias_wanted ? of_channels : Output(),
                           weight_wanted ? of_channels : Output()});
                sums = made[0];
                if (bias_wanted) result[2] = made[1].to(bias_dtype);
                if (weight_wanted) result[1] = made[2].to(weight_dtype);
            }
            if (x_wanted) {
                // Running statistics do not depend on x: no gradient flows through mean and variance.
                Tensor through = own_stats ? sums : Tensor();
                if (across_shards) through = sum_over_shards(through);
                result[0] = apply_one(BatchNormBackwardData{eps},
                                      {input.get(), dy, saved_stats.get(), scale.get(), through}, dx);
            }
            return result;
        }));
    return y;
}

}  // namespace

Tensor batch_norm(const Tensor& given_x, const Tensor& given_mean, const Tensor& given_var, const Tensor& given_weight,
                  const Tensor& given_bias, const BatchNormOptions& options) {
    const CheckedArgs call(op_name, {arg::floating("input", given_x), arg::parameter("running_mean", given_mean),
                                     arg::parameter("running_var", given_var), arg::parameter("weight", given_weight),
                                     arg::parameter("bias", given_bias)});
    const Tensor& x = call[0];
    if (x.dims() < 2)
        throw InvalidArgument(
            fmt::format("batch_norm: input has shape {}; expected (N, C) or (N, C, ...)", x.shape().str()));
    check(x, call[1], call[2], call[3], call[4], options);
    if (x.dims() == 4) return normalized_images(x, call[1], call[2], call[3], call[4], options);
    const Tensor images = tagged(x.reshape({x.size(0), x.size(1), channel_size(x), 1}), x.is_batch());
    const Tensor y = normalized_images(images, call[1], call[2], call[3], call[4], options);
    return tagged(y.reshape(x.shape()), x.is_batch());
}

namespace {

void check_layer(const char* function, const Tensor& x, const Shape& layer, const Tensor& weight, const Tensor& bias) {
    bool last = layer.dims() > 0 && layer.dims() <= x.dims();
    for (int i = 1; last && i <= layer.dims(); ++i) last = x.size(-i) == layer[layer.dims() - i];
    if (!last)
        throw InvalidArgument(
            fmt::format("{}: normalized_shape {} does not match input {}; expected its last dimensions", function,
                        layer.str(), x.shape().str()));
    for (const auto& [name, tensor] : {std::pair<const char*, const Tensor&>("weight", weight), {"bias", bias}})
        if (tensor.defined() && !(tensor.shape() == layer))
            throw InvalidArgument(fmt::format("{}: {} has shape {}; expected normalized_shape {}", function, name,
                                              tensor.shape().str(), layer.str()));
}

}  // namespace

namespace {

/// Gradients of layer_norm with respect to x, weight and bias, computed by functions with gradients.
std::vector<Tensor> differentiable_layer_gradients(const Tensor& given_dy, const Tensor& given_x, const Tensor& weight,
                                                   int dims, double eps) {
    const Tensor x = widened(given_x), dy = widened(given_dy);
    std::vector<int> of_layer, of_rows;
    for (int d = 0; d < x.dims(); ++d) (d < x.dims() - dims ? of_rows : of_layer).push_back(d);
    const Tensor centred = x - mean(x, of_layer, true);
    const Tensor deviation = rsqrt(mean(square(centred), of_layer, true) + eps), normal = centred * deviation;
    const Tensor scaled = weight.defined() ? dy * widened(weight) : dy;
    const Tensor dx =
        deviation * (scaled - mean(scaled, of_layer, true) - normal * mean(scaled * normal, of_layer, true));
    const auto over_rows = [&](const Tensor& each) {
        return (of_rows.empty() ? each : sum(each, of_rows)).to(given_x.dtype());
    };
    return {tagged(dx.to(given_x.dtype()), given_x.is_batch()), over_rows(dy * normal), over_rows(dy)};
}

}  // namespace

Tensor layer_norm(const Tensor& given_x, const Shape& normalized_shape, const Tensor& given_weight,
                  const Tensor& given_bias, double eps) {
    constexpr const char* name = "layer_norm";
    const CheckedArgs call(name, {arg::floating("input", given_x), arg::optional("weight", given_weight),
                                  arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    check_layer(name, x, normalized_shape, weight, bias);
    if (!(eps >= 0)) throw InvalidArgument(fmt::format("layer_norm: invalid eps ({}); expected 0 or more", eps));
    const int dims = normalized_shape.dims();
    std::int64_t rows = 1;
    for (int i = 0; i < x.dims() - dims; ++i) rows *= x.size(i);
    const bool with_backward = needs_autograd({x, weight, bias});
    const Output statistic = with_backward ? Output(shaped(x, {rows})) : Output();
    const auto made =
        apply(make_operation(LayerNormForward{dims, eps}), {x, weight, bias}, {like(x), statistic, statistic});
    if (!with_backward) return made[0];

    const bool x_wanted = x.requires_grad();
    const bool weight_wanted = weight.defined() && weight.requires_grad();
    const bool bias_wanted = bias.defined() && bias.requires_grad();
    add_autograd_node(
        name, {x, weight, bias}, {made[0]},
        BackwardFunction::composed([=, input = SavedTensor(x, name), scale = SavedTensor(weight, name),
                                    mean = SavedTensor(made[1], name), deviation = SavedTensor(made[2], name),
                                    dx = like(x), of_layer = shaped(x, normalized_shape)](const auto& gradients) {
            if (grad_enabled())
                return differentiable_layer_gradients(gradients[0], input.get(), scale.get(), dims, eps);
            const std::vector<Tensor> in{gradients[0], input.get(), mean.get(), deviation.get()};
            std::vector<Tensor> result(3);
            if (x_wanted)
                result[0] = apply_one(LayerNormBackwardData{dims}, {in[0], in[1], in[2], in[3], scale.get()}, dx);
            if (weight_wanted || bias_wanted) {
                const auto sums =
                    apply(make_operation(LayerNormBackwardWeights{dims}), in,
                          {weight_wanted ? Output(of_layer) : Output(), bias_wanted ? Output(of_layer) : Output()});
                result[1] = sums[0];
                result[2] = sums[1];
            }
            return result;
        }));
    return made[0];
}

namespace {

Tensor normalized_groups(const char* name, const Tensor& given, std::int64_t groups, const Tensor& weight,
                         const Tensor& bias, double eps) {
    const std::int64_t rows = given.size(0), channels = given.size(1);
    if (groups < 1 || channels % groups != 0)
        throw InvalidArgument(
            fmt::format("{}: cannot divide the {} channels of input {} into {} groups; expected a "
                        "divisor",
                        name, channels, given.shape().str(), groups));
    checks::vector_of(name, "weight", weight, channels, "channel");
    checks::vector_of(name, "bias", bias, channels, "channel");
    const Tensor x = widened(given);
    const std::int64_t size = channels / groups * channel_size(x);
    Tensor y = layer_norm(x.reshape({rows, groups, size}), {size}, {}, {}, eps).reshape(x.shape());
    Shape of_channels;
    for (int dim = 0; dim < x.dims(); ++dim) of_channels.push_back(dim == 1 ? channels : 1);
    if (weight.defined()) y = y * weight.to(x.dtype()).reshape(of_channels);
    if (bias.defined()) y = y + bias.to(x.dtype()).reshape(of_channels);
    return tagged(y.to(given.dtype()), given.is_batch());
}

/// Distance of 1 to the next number of the dtype (torch.finfo(dtype).eps).
double epsilon_of(DType dtype) {
    switch (dtype) {
        case DType::f16: return 0x1p-10;
        case DType::bf16: return 0x1p-7;
        case DType::f64: return 0x1p-52;
        default: return 0x1p-23;
    }
}

}  // namespace

Tensor group_norm(const Tensor& x, std::int64_t num_groups, const Tensor& weight, const Tensor& bias, double eps) {
    const CheckedArgs call("group_norm",
                           {arg::floating("input", x), arg::parameter("weight", weight), arg::parameter("bias", bias)});
    if (call[0].dims() < 2)
        throw InvalidArgument(
            fmt::format("group_norm: input has shape {}; expected (N, C, ...)", call[0].shape().str()));
    return normalized_groups("group_norm", call[0], num_groups, call[1], call[2], eps);
}

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
    const CheckedArgs call("instance_norm",
                           {arg::floating("input", x), arg::parameter("weight", weight), arg::parameter("bias", bias)});
    if (call[0].dims() < 3)
        throw InvalidArgument(
            fmt::format("instance_norm: input has shape {}; expected (N, C, L, ...)", call[0].shape().str()));
    if (channel_size(call[0]) == 1)
        throw InvalidArgument(
            fmt::format("instance_norm: input {} has one value per channel; expected more", call[0].shape().str()));
    return normalized_groups("instance_norm", call[0], call[0].size(1), call[1], call[2], eps);
}

Tensor rms_norm(const Tensor& given, const Shape& normalized_shape, const Tensor& given_weight,
                std::optional<double> eps) {
    const CheckedArgs call("rms_norm", {arg::floating("input", given), arg::parameter("weight", given_weight)});
    const Tensor &weight = call[1], x = widened(call[0]);
    check_layer("rms_norm", x, normalized_shape, weight, {});
    std::vector<int> dims;
    for (int i = 1; i <= normalized_shape.dims(); ++i) dims.push_back(-i);
    Tensor y = x * rsqrt(mean(square(x), dims, true) + eps.value_or(epsilon_of(call[0].dtype())));
    if (weight.defined()) y = y * weight.to(x.dtype());
    return y.to(call[0].dtype());
}

}  // namespace lockstep
