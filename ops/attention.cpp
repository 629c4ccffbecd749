#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// The score of positions that are not attended to: it is finite, so that rows without any other position do not become
/// NaN.
double lowest(DType dtype) { return dtype == DType::f16 ? -65504 : -3e38; }

/// Throws InvalidArgument for a mask of another dtype than bool or a floating one, or that does not broadcast to the
/// scores.
void check_mask(const char* name, const Tensor& mask, const Tensor& scores) {
    if (mask.dtype() != DType::boolean && !is_floating(mask.dtype()))
        throw InvalidArgument(
            fmt::format("{}: attn_mask has dtype {}; expected bool or a floating dtype", name, name_of(mask.dtype())));
    bool fits = mask.dims() <= scores.dims();
    for (int dim = 1; fits && dim <= mask.dims(); ++dim)
        fits = mask.size(-dim) == 1 || mask.size(-dim) == scores.size(-dim);
    if (!fits)
        throw InvalidArgument(fmt::format("{}: attn_mask {} does not broadcast to the scores {}", name,
                                          mask.shape().str(), scores.shape().str()));
}

/// x (..., groups, S, E) with every group repeated for the heads that share it.
Tensor for_heads(const char* name, const char* what, const Tensor& x, const Tensor& query) {
    const std::int64_t heads = query.dims() < 3 ? 0 : query.size(-3), groups = x.dims() < 3 ? 0 : x.size(-3);
    if (groups < 1 || heads % groups != 0)
        throw InvalidArgument(fmt::format(
            "{}: with enable_gqa, {} {} does not fit query {}; expected (..., groups, S, E) with a number of "
            "groups that divides the heads",
            name, what, x.shape().str(), query.shape().str()));
    if (heads == groups) return x;
    Shape repeated, joined = x.shape();
    for (int dim = 0; dim < x.dims(); ++dim) {
        repeated.push_back(x.size(dim));
        if (dim == x.dims() - 3) repeated.push_back(heads / groups);
    }
    joined[x.dims() - 3] = heads;
    return tagged(x.unsqueeze(x.dims() - 2).expand(repeated).reshape(joined), x.is_batch() && x.dims() > 3);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& given_query, const Tensor& given_key, const Tensor& given_value,
                                    const AttentionOptions& options) {
    constexpr const char* name = "scaled_dot_product_attention";
    const CheckedArgs call(name, {arg::floating("query", given_query), arg::floating("key", given_key),
                                  arg::floating("value", given_value)});
    const Tensor& query = call[0];
    const Tensor key = options.enable_gqa ? for_heads(name, "key", call[1], query) : call[1];
    const Tensor value = options.enable_gqa ? for_heads(name, "value", call[2], query) : call[2];
    if (query.dims() < 2 || key.dims() < 2 || value.dims() < 2 || query.size(-1) != key.size(-1) ||
        key.size(-2) != value.size(-2))
        throw InvalidArgument(
            fmt::format("{}: query {}, key {} and value {} do not match; expected (..., L, E), (..., "
                        "S, E) and (..., S, Ev)",
                        name, query.shape().str(), key.shape().str(), value.shape().str()));
    if (options.is_causal && options.attn_mask.defined())
        throw InvalidArgument(fmt::format("{}: both attn_mask and is_causal are given; expected one of them", name));

    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
    // Both factors get a part of the scale, as in PyTorch: large products could overflow in f16.
    const double part = std::sqrt(std::abs(scale));
    Tensor scores = matmul(query * (scale < 0 ? -part : part), key.transpose(-2, -1) * part);
    Tensor attended = options.attn_mask;
    if (options.is_causal)
        attended = tril(Tensor::full({query.size(-2), key.size(-2)}, 1, DType::boolean, query.device()));
    if (attended.defined()) check_mask(name, attended, scores);
    if (attended.defined() && attended.dtype() != DType::boolean) {  // numbers to add; -infinity excludes a position
        const Tensor bias = attended.to(scores.dtype());
        attended = bias > -std::numeric_limits<double>::infinity();
        scores = scores + where(attended, bias, 0);
    }
    if (attended.defined()) scores = where(attended, scores, lowest(scores.dtype()));
    Tensor weights = softmax(scores, -1);
    if (attended.defined()) weights = where(attended, weights, 0);
    return matmul(dropout(weights, options.dropout_p, options.dropout_p > 0), value);
}

}  // namespace lockstep
