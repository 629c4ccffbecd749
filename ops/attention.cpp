// Attention. The operations of attention_operations.h do not store the scores. Functions with gradients, which do,
// compute gradients of masks and second derivatives.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/attention_operations.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

constexpr const char* attention_name = "scaled_dot_product_attention";

/// The score of positions that are not attended to: it is finite, so that rows without any other position do not become
/// NaN.
double lowest(DType dtype) { return dtype == DType::f16 ? -65504 : -3e38; }

/// The leading sizes of x, without its last `count`.
Shape leading(const Tensor& x, int count) {
    Shape shape;
    for (int dim = 0; dim < x.dims() - count; ++dim) shape.push_back(x.size(dim));
    return shape;
}

Shape with_sizes(Shape shape, std::initializer_list<std::int64_t> sizes) {
    for (const std::int64_t size : sizes) shape.push_back(size);
    return shape;
}

/// Throws InvalidArgument for a mask of another dtype than bool or a floating one, or that does not broadcast to the
/// scores.
void check_mask(const Tensor& mask, const Shape& scores) {
    if (mask.dtype() != DType::boolean && !is_floating(mask.dtype()))
        throw InvalidArgument(fmt::format("{}: attn_mask has dtype {}; expected bool or a floating dtype",
                                          attention_name, name_of(mask.dtype())));
    bool fits = mask.dims() <= scores.dims();
    for (int dim = 1; fits && dim <= mask.dims(); ++dim)
        fits = mask.size(-dim) == 1 || mask.size(-dim) == scores[scores.dims() - dim];
    if (!fits)
        throw InvalidArgument(fmt::format("{}: attn_mask {} does not broadcast to the scores {}", attention_name,
                                          mask.shape().str(), scores.str()));
}

/// Throws InvalidArgument unless x (..., groups, S, E) has a number of groups that divides the heads of the query.
void check_groups(const char* what, const Tensor& x, const Tensor& query) {
    const std::int64_t heads = query.dims() < 3 ? 0 : query.size(-3), groups = x.dims() < 3 ? 0 : x.size(-3);
    if (groups < 1 || heads % groups != 0)
        throw InvalidArgument(fmt::format(
            "{}: with enable_gqa, {} {} does not fit query {}; expected (..., groups, S, E) with a number of "
            "groups that divides the heads",
            attention_name, what, x.shape().str(), query.shape().str()));
}

/// x (..., groups, S, E) with every group repeated for the heads that share it.
Tensor for_heads(const Tensor& x, std::int64_t heads) {
    const std::int64_t groups = x.size(-3);
    if (heads == groups) return x;
    const Shape repeated = with_sizes(leading(x, 2), {heads / groups, x.size(-2), x.size(-1)});
    const Shape all = with_sizes(leading(x, 3), {heads, x.size(-2), x.size(-1)});
    return tagged(x.unsqueeze(x.dims() - 2).expand(repeated).reshape(all), x.is_batch() && x.dims() > 3);
}

// ---- composition ------------------------------------------------------------------------------------------------

/// The weights of all keys (..., L, S), before dropout. `mask` and `is_causal` as in AttentionOptions.
Tensor weights_of(const Tensor& query, const Tensor& key, const Tensor& mask, bool is_causal, double scale) {
    // Both factors get a part of the scale, as in PyTorch: large products could overflow in f16.
    const double part = std::sqrt(std::abs(scale));
    Tensor scores = matmul(query * (scale < 0 ? -part : part), key.transpose(-2, -1) * part);
    Tensor attended = mask;
    if (is_causal) attended = tril(Tensor::full({query.size(-2), key.size(-2)}, 1, DType::boolean, query.device()));
    if (attended.defined() && attended.dtype() != DType::boolean) {  // numbers to add; -infinity excludes a position
        const Tensor bias = attended.to(scores.dtype());
        attended = ne(bias, -std::numeric_limits<double>::infinity());
        scores = scores + where(attended, bias, 0);
    }
    if (attended.defined()) scores = where(attended, scores, lowest(scores.dtype()));
    const Tensor weights = softmax(scores, -1);
    return attended.defined() ? where(attended, weights, 0) : weights;
}

/// Checked arguments of a call. Either key and value have as many heads as the query, or both have the same groups and
/// all have the same number of dimensions.
struct AttentionCall {
    Tensor query, key, value, mask;
    bool is_causal;
    double scale, p;
    std::int64_t heads = 0;  ///< number of heads that share groups; 0 without groups

    Tensor of_heads(const Tensor& x) const { return heads > 0 ? for_heads(x, heads) : x; }
    Tensor composed() const {
        const Tensor weights = weights_of(query, of_heads(key), mask, is_causal, scale);
        return matmul(dropout(weights, p, p > 0), of_heads(value));
    }
};

/// The gradient of a group from those of its heads.
Tensor sum_of_heads(const Tensor& gradient, const Tensor& x) {
    if (gradient.dims() < 3 || gradient.size(-3) == x.size(-3)) return gradient;
    const Shape by_group =
        with_sizes(leading(x, 2), {gradient.size(-3) / x.size(-3), gradient.size(-2), gradient.size(-1)});
    return sum(gradient.reshape(by_group), -3);
}

/// The gradients of query, key, value and a mask of numbers, computed by functions with gradients. `kept`: factors of
/// the weights, or undefined.
std::vector<Tensor> differentiable_gradients(const AttentionCall& call, const Tensor& given_dy,
                                             const Tensor& given_kept) {
    const DType dtype = given_dy.dtype();
    const Tensor dy = widened(given_dy), query = widened(call.query), key = widened(call.of_heads(call.key)),
                 value = widened(call.of_heads(call.value));
    const Tensor weights = weights_of(query, key, call.mask, call.is_causal, call.scale);
    const Tensor kept = given_kept.defined() ? given_kept : Tensor::ones({1}, weights.dtype(), weights.device());
    const Tensor dweights = matmul(dy, value.transpose(-2, -1)) * kept;
    const Tensor dscores = weights * (dweights - sum(dweights * weights, -1, true)), dproducts = dscores * call.scale;
    Tensor dmask;
    if (call.mask.defined() && is_floating(call.mask.dtype()))
        dmask = tagged(reduce_to(dscores, call.mask.shape()).to(call.mask.dtype()), call.mask.is_batch());
    return {tagged(matmul(dproducts, key).to(dtype), call.query.is_batch()),
            tagged(sum_of_heads(matmul(dproducts.transpose(-2, -1), query), call.key).to(dtype), call.key.is_batch()),
            tagged(sum_of_heads(matmul((weights * kept).transpose(-2, -1), dy), call.value).to(dtype),
                   call.value.is_batch()),
            dmask};
}

// ---- the operation ----------------------------------------------------------------------------------------------

/// x with four dimensions, without a history: the last three of x, and all others as one.
Tensor in_four(const Tensor& x) {
    const int dims = x.dims();
    const std::int64_t before = leading(x, std::min(dims, 3)).numel(), heads = dims < 3 ? 1 : x.size(-3);
    return x.detach().reshape({before, heads, x.size(-2), x.size(-1)});
}

/// The mask of scores (`batch`..., L, S) with four dimensions; sizes of 1 remain.
Tensor mask_in_four(const Tensor& mask, const Shape& batch, DType dtype) {
    Shape shape;
    for (int dim = mask.dims(); dim < batch.dims() + 2; ++dim) shape.push_back(1);
    for (int dim = 0; dim < mask.dims(); ++dim) shape.push_back(mask.size(dim));
    Tensor whole = (mask.dtype() == DType::boolean ? mask : mask.to(dtype)).detach().reshape(shape);
    if (batch.dims() > 2 && leading(whole, 3).numel() != 1) {
        for (int dim = 0; dim < batch.dims() - 1; ++dim) shape[dim] = batch[dim];
        whole = whole.expand(shape);
    }
    return in_four(whole);
}

/// Elements of one row of the batch of a tensor of this shape.
std::int64_t elements_of_row(const Shape& shape) { return shape[0] > 0 ? shape.numel() / shape[0] : 0; }

/// `call` by its operation; all leading dimensions are equal except groups. `batch`: those of the scores;
/// `weights_batch` and `batch_tag`: the tags of the weights and of the result.
Tensor attended(const AttentionCall& call, const Shape& batch, bool weights_batch, bool batch_tag) {
    const Tensor &query = call.query, &key = call.key, &value = call.value;
    const Shape scores = with_sizes(batch, {query.size(-2), key.size(-2)});
    const Tensor mask = call.mask.defined() ? mask_in_four(call.mask, batch, query.dtype()) : Tensor();
    const bool drops = call.p > 0, with_backward = needs_autograd({query, key, value, call.mask});
    const Tensor q = in_four(query), k = in_four(key), v = in_four(value);
    const Shape four{q.size(0), q.size(1), q.size(2), v.size(3)};
    const DType wide = is_half_type(query.dtype()) ? DType::f32 : query.dtype();
    const Output statistics =
        with_backward ? Output(TensorMeta::contiguous(wide, {2, q.size(0), q.size(1), q.size(2)})) : Output();
    const Output draws =
        with_backward && drops ? Output(TensorMeta::contiguous(DType::i64, {attention_draws_size})) : Output();
    const DrawBy by = weights_batch ? DrawBy::row : DrawBy::shard;
    const auto operation =
        drops ? make_operation(AttentionForward<true>{call.is_causal, call.scale, call.p, by, elements_of_row(scores)})
              : make_operation(AttentionForward<false>{call.is_causal, call.scale, 0, by, 0});
    const std::vector<Tensor> made = apply(operation, {q, k, v, mask}, {shaped(query, four), statistics, draws});
    const Tensor y = tagged(made[0].reshape(with_sizes(batch, {query.size(-2), value.size(-1)})), batch_tag);
    if (!with_backward) return y;

    const auto saved = [](const Tensor& x) { return SavedTensor(x, attention_name); };
    const bool mask_wanted = call.mask.defined() && call.mask.requires_grad();
    const bool wanted[] = {query.requires_grad(), key.requires_grad(), value.requires_grad()};
    AttentionCall options = call;
    options.query = options.key = options.value = options.mask = Tensor();
    add_autograd_node(
        attention_name, {query, key, value, call.mask}, {y},
        BackwardFunction::composed([=, saved_query = saved(query), saved_key = saved(key), saved_value = saved(value),
                                    saved_mask = saved(call.mask), saved_four = saved(mask),
                                    saved_statistics = saved(made[1]), saved_draws = saved(made[2]),
                                    wants_query = wanted[0], wants_key = wanted[1],
                                    wants_value = wanted[2]](const auto& gradients) {
            AttentionCall again = options;
            again.query = saved_query.get();
            again.key = saved_key.get();
            again.value = saved_value.get();
            if (grad_enabled() || mask_wanted) {
                again.mask = saved_mask.get();
                const Tensor drawn = saved_draws.get();
                const Tensor kept = drawn.defined()
                                        ? apply_one(AttentionDropoutMask{again.p}, {drawn},
                                                    TensorMeta::contiguous(saved_statistics.get().dtype(), scores))
                                        : Tensor();
                return differentiable_gradients(again, gradients[0], kept);
            }
            const Tensor in[] = {again.query, again.key, again.value};
            const bool wants[] = {wants_query, wants_key, wants_value};
            std::vector<Output> outputs;
            for (int i = 0; i < 3; ++i)
                outputs.push_back(wants[i] ? Output(shaped(in[i], in_four(in[i]).shape())) : Output());
            std::vector<Tensor> result = apply(make_operation(AttentionBackward{again.is_causal, again.scale, again.p}),
                                               {in_four(gradients[0]), in_four(in[0]), in_four(in[1]), in_four(in[2]),
                                                saved_four.get(), saved_statistics.get(), saved_draws.get()},
                                               outputs);
            for (std::size_t i = 0; i < 3; ++i)
                if (wants[i]) result[i] = tagged(result[i].reshape(in[i].shape()), in[i].is_batch());
            return result;
        }));
    return y;
}

/// x with other leading dimensions, but its own last `own`.
Tensor with_leading(const Tensor& x, const Shape& leading_sizes, int own) {
    Shape shape = leading_sizes;
    for (int dim = own; dim > 0; --dim) shape.push_back(x.size(-dim));
    return shape == x.shape() ? x : x.expand(shape);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& given_query, const Tensor& given_key, const Tensor& given_value,
                                    const AttentionOptions& options) {
    const CheckedArgs checked(attention_name, {arg::floating("query", given_query), arg::floating("key", given_key),
                                               arg::floating("value", given_value)});
    const double p = options.dropout_p;
    AttentionCall call{checked[0], checked[1], checked[2], options.attn_mask, options.is_causal, 0, p};
    Tensor &query = call.query, &key = call.key, &value = call.value;
    if (options.enable_gqa) {
        check_groups("key", key, query);
        check_groups("value", value, query);
        // The operation repeats groups itself if key and value have the same.
        if (key.dims() == query.dims() && value.dims() == query.dims() && key.size(-3) == value.size(-3)) {
            call.heads = query.size(-3);
        } else {
            key = for_heads(key, query.size(-3));
            value = for_heads(value, query.size(-3));
        }
    }
    if (query.dims() < 2 || key.dims() < 2 || value.dims() < 2 || query.size(-1) != key.size(-1) ||
        key.size(-2) != value.size(-2))
        throw InvalidArgument(
            fmt::format("{}: query {}, key {} and value {} do not match; expected (..., L, E), (..., "
                        "S, E) and (..., S, Ev)",
                        attention_name, query.shape().str(), key.shape().str(), value.shape().str()));
    if (options.is_causal && options.attn_mask.defined())
        throw InvalidArgument(
            fmt::format("{}: both attn_mask and is_causal are given; expected one of them", attention_name));
    if (!(p >= 0 && p <= 1))
        throw InvalidArgument(fmt::format("{}: invalid dropout_p ({}); expected [0, 1]", attention_name, p));
    call.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));

    const int own = call.heads > 0 ? 3 : 2;
    const Shape of_scores = broadcast_shapes(leading(query, own), leading(key, own), attention_name);
    const Shape all = broadcast_shapes(of_scores, leading(value, own), attention_name);
    Shape batch = of_scores;
    if (call.heads > 0) batch.push_back(call.heads);
    const Shape scores = with_sizes(batch, {query.size(-2), key.size(-2)});
    if (options.attn_mask.defined()) check_mask(options.attn_mask, scores);
    if (!(of_scores == all)) return call.composed();  // one matrix of weights for several values

    const auto hands_on = [](const Tensor& x, const Shape& y) {
        return x.is_batch() && x.dims() == y.dims() && y.dims() > 2 && x.size(0) == y[0];
    };
    const auto masks_rows = [&](const Tensor& x) {
        return x.defined() && x.is_batch() && x.dims() == scores.dims() && x.size(0) == scores[0];
    };
    const bool weights_batch = hands_on(query, scores) || hands_on(key, scores) || masks_rows(options.attn_mask) ||
                               (query.is_batch() && scores.dims() == 2);
    const bool batch_tag = weights_batch || hands_on(value, scores);
    query = with_leading(query, of_scores, own);
    key = with_leading(key, of_scores, own);
    value = with_leading(value, of_scores, own);
    return attended(call, batch, weights_batch, batch_tag);
}

}  // namespace lockstep
