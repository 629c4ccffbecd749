// Random tensors.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/broadcast.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/random_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// Numbers of the elements of a tensor that is made of `tensors`, `batch`: with the batch in dimension 0.
DrawBy draw_by(bool batch, TensorList tensors) {
    if (batch) return DrawBy::row;
    const Trace* const trace = Trace::current();
    const bool by_shard = trace != nullptr && std::any_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
                              return trace->differs_by_shard(tensor);
                          });
    return by_shard ? DrawBy::shard : DrawBy::element;
}

/// y, of which a trace knows whether it is the same on all shards.
Tensor noted(DrawBy by, const Tensor& y) {
    if (Trace* const trace = Trace::current(); trace != nullptr && by == DrawBy::element)
        trace->set_differs_by_shard(y, false);
    return y;
}

/// Random numbers with the shape, dtype, device and batch tag of x.
Tensor drawn(Distribution distribution, const Tensor& x, double p = 0) {
    // Created on the device of x, because the operation has no input to determine it.
    const Tensor y = tagged(Tensor::empty(x.shape(), x.dtype(), x.device()), x.is_batch());
    const DrawBy by = draw_by(x.is_batch(), {x});
    return noted(by, apply_one(RandomValues{distribution, p, by}, {}, y));
}

/// A random number for each parameter; `meta`: of the result, to which the parameters are broadcast.
Tensor drawn_of(Distribution distribution, const Tensor& parameters, const TensorMeta& meta, TensorList tensors) {
    const Tensor each = tagged(parameters.expand(meta.shape), meta.batch);
    const std::int64_t rows = meta.shape.dims() > 0 ? meta.shape[0] : 1;
    const std::int64_t per_row = std::max<std::int64_t>(1, rows > 0 ? meta.shape.numel() / rows : 0);
    const DrawBy by = draw_by(meta.batch, tensors);
    return noted(by, apply_one(RandomValuesOf{distribution, per_row, by}, {each}, meta));
}

/// y, whose gradients with respect to the arguments are 0.
Tensor without_gradients(const char* name, TensorList arguments, const Tensor& y) {
    if (!needs_autograd(arguments)) return y;
    std::vector<TensorMeta> metas;
    for (const Tensor& argument : arguments) metas.push_back(like(argument));
    add_autograd_node(name, arguments, {y}, BackwardFunction::composed([metas](const auto& gradients) {
                          std::vector<Tensor> zeros;
                          for (const TensorMeta& meta : metas)
                              zeros.push_back(tagged(
                                  Tensor::zeros(meta.shape, gradients[0].dtype(), gradients[0].device()), meta.batch));
                          return zeros;
                      }));
    return y;
}

/// Exponentially distributed numbers with mean 1, of the shape of x, all positive and finite.
Tensor exponential_like(const Tensor& x) {
    constexpr double smallest = 0x1p-25;  // uniform numbers may be 0, and are less than 1
    return neg(log(clamp(rand_like(x), smallest)));
}

void require_deviation(double std) {
    if (!(std >= 0)) throw InvalidArgument(fmt::format("normal: invalid std ({}); expected 0 or more", std));
}

}  // namespace

Tensor rand_like(const Tensor& x) {
    const CheckedArgs call("rand_like", {arg::floating("input", x)});
    return drawn(Distribution::uniform, call[0]);
}

Tensor randn_like(const Tensor& x) {
    const CheckedArgs call("randn_like", {arg::floating("input", x)});
    return drawn(Distribution::normal, call[0]);
}

Tensor bernoulli(const Tensor& p) {
    const CheckedArgs call("bernoulli", {arg::floating("input", p)});
    const Tensor y = drawn_of(Distribution::bernoulli, call[0], like(call[0]), {call[0]});
    return without_gradients("bernoulli", {call[0]}, y);
}

Tensor bernoulli(const Tensor& x, double p) {
    const CheckedArgs call("bernoulli", {arg::floating("input", x)});
    if (!(p >= 0 && p <= 1))
        throw InvalidArgument(fmt::format("bernoulli: invalid probability ({}); expected [0, 1]", p));
    return without_gradients("bernoulli", {call[0]}, drawn(Distribution::bernoulli, call[0], p));
}

Tensor normal(const Tensor& given_mean, const Tensor& given_std) {
    const CheckedArgs call("normal", {arg::floating("mean", given_mean), arg::floating("std", given_std)});
    const Tensor &mean = call[0], &std = call[1];
    const TensorMeta meta = broadcast_meta("normal", mean.dtype(), {mean, std});
    const auto draw = [&] {
        const NoGrad no_grad;
        return add(mean, drawn_of(Distribution::normal, std, meta, {mean, std}));
    };
    return without_gradients("normal", {mean, std}, draw());
}

Tensor normal(const Tensor& given_mean, double std) {
    const CheckedArgs call("normal", {arg::floating("mean", given_mean)});
    const Tensor& mean = call[0];
    require_deviation(std);
    const auto draw = [&] {
        const NoGrad no_grad;
        return add(mean, drawn(Distribution::normal, mean) * std);
    };
    return without_gradients("normal", {mean}, draw());
}

Tensor normal(double mean, const Tensor& given_std) {
    const CheckedArgs call("normal", {arg::floating("std", given_std)});
    const Tensor& std = call[0];
    const auto draw = [&] {
        const NoGrad no_grad;
        return drawn_of(Distribution::normal, std, like(std), {std}) + mean;
    };
    return without_gradients("normal", {std}, draw());
}

Tensor multinomial(const Tensor& given, std::int64_t num_samples, bool replacement) {
    constexpr const char* name = "multinomial";
    const CheckedArgs call(name, {arg::floating("weights", given)});
    const Tensor weights = widened(call[0].detach());
    if (weights.dims() < 1 || weights.dims() > 2 || weights.size(-1) < 1)
        throw InvalidArgument(fmt::format("{}: weights {}; expected (C) or (N, C) with at least one category", name,
                                          weights.shape().str()));
    const std::int64_t categories = weights.size(-1);
    if (num_samples < 1 || (!replacement && num_samples > categories))
        throw InvalidArgument(
            fmt::format("{}: {} samples of {} categories; expected at least one and, without "
                        "replacement, not more than there are categories",
                        name, num_samples, categories));
    if (weights.dims() == 1) checks::not_rows(name, weights, 0);
    const NoGrad no_grad;
    const Tensor sums = cumsum(weights, -1), total = sums.slice(-1, categories - 1, categories);
    // This draw reports shares that are not probabilities, and changes nothing else. Shares of 0 in all are NaN.
    const Tensor shares = weights / total;
    const Tensor valid = drawn_of(Distribution::bernoulli, shares, like(shares), {shares}) * 0;
    if (!replacement)  // the first of independent events with these rates
        return topk((weights + valid) / exponential_like(weights), num_samples).indices;
    Shape shape = weights.shape();
    shape[shape.dims() - 1] = num_samples;
    const Tensor at = rand_like(total.expand(shape)) * total + valid.slice(-1, 0, 1);
    return clamp(searchsorted(sums, at, true), 0, categories - 1);
}

Tensor gumbel_softmax(const Tensor& given, double tau, bool hard, int dim) {
    constexpr const char* name = "gumbel_softmax";
    const CheckedArgs call(name, {arg::floating("logits", given)});
    if (!(tau > 0)) throw InvalidArgument(fmt::format("{}: invalid tau ({}); expected a positive number", name, tau));
    const Tensor logits = widened(call[0]);
    const int along = wrap_dim(dim, logits.dims(), name);
    const Tensor soft = softmax((logits - log(exponential_like(logits.detach()))) / tau, along);
    if (!hard) return soft.to(call[0].dtype());
    const Tensor chosen = one_hot(argmax(soft.detach(), along), logits.size(along));
    const Tensor one = movedim(chosen, -1, along).to(soft.dtype());
    return (one + (soft - soft.detach())).to(call[0].dtype());
}

}  // namespace lockstep
