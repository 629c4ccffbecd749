#include "lockstep/ops/transformer.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/init.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/initial_values.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

Tensor projection_weight(std::int64_t embed_dim, std::int64_t heads) {
    require_positive("MultiheadAttention", "embed_dim", embed_dim);
    require_positive("MultiheadAttention", "num_heads", heads);
    if (embed_dim % heads != 0)
        throw InvalidArgument(
            fmt::format("MultiheadAttention: embed_dim {} is not divisible by num_heads {}; expected "
                        "heads of equal size",
                        embed_dim, heads));
    // Glorot and Bengio (2010): sqrt(6 / (rows + columns)).
    return uniform_values({3 * embed_dim, embed_dim}, std::sqrt(6 / static_cast<double>(4 * embed_dim)));
}

/// (N, L, E) as (N, heads, L, E / heads).
Tensor by_heads(const Tensor& x, std::int64_t heads) {
    const Tensor parts = x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads});
    return tagged(parts.transpose(1, 2), x.is_batch());
}

/// Masks of a call as one mask that broadcasts to (N, heads, L, S); undefined without masks.
Tensor joined_mask(const AttentionMasks& masks, const Tensor& query, const Tensor& key) {
    constexpr const char* name = "MultiheadAttention";
    Tensor mask = masks.attn_mask;
    if (masks.is_causal) {
        if (mask.defined())
            throw InvalidArgument(
                fmt::format("{}: both attn_mask and is_causal are given; expected one of them", name));
        mask = tril(Tensor::full({query.size(1), key.size(1)}, 1, DType::boolean, query.device()));
    }
    if (!masks.key_padding_mask.defined()) return mask;
    const Tensor& ignored = masks.key_padding_mask;
    if (ignored.dtype() != DType::boolean || !(ignored.shape() == Shape{key.size(0), key.size(1)}))
        throw InvalidArgument(fmt::format("{}: key_padding_mask has dtype {} and shape {}; expected bool and {}", name,
                                          name_of(ignored.dtype()), ignored.shape().str(),
                                          Shape{key.size(0), key.size(1)}.str()));
    const Tensor kept = logical_not(ignored).reshape({key.size(0), 1, 1, key.size(1)});
    const Tensor attended = tagged(kept, ignored.is_batch());
    if (!mask.defined()) return attended;
    if (mask.dtype() == DType::boolean) return logical_and(mask, attended);
    return where(attended, mask, -std::numeric_limits<double>::infinity());
}

/// The two linear layers of an encoder or decoder layer, and `last`.
Tensor feed_forward(const auto& layer, const Dropout& last, const Tensor& x) {
    const Tensor hidden = layer.linear1.forward(x);
    const bool smooth = layer.options.activation == TransformerEncoderLayerOptions::Activation::gelu;
    return last.forward(layer.linear2.forward(layer.dropout.forward(smooth ? gelu(hidden) : relu(hidden))));
}

}  // namespace

MultiheadAttention::MultiheadAttention(std::int64_t embed_dim, std::int64_t heads,
                                       const MultiheadAttentionOptions& options)
    : in_proj_weight(projection_weight(embed_dim, heads)),
      out_proj(embed_dim, embed_dim, options.bias),
      num_heads(heads),
      dropout(require_probability("MultiheadAttention", options.dropout)) {
    if (!options.bias) return;
    in_proj_bias.emplace(Tensor::zeros({3 * embed_dim}));
    out_proj.bias.emplace(Tensor::zeros({embed_dim}));
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) const {
    detail::require_listed("MultiheadAttention", training);
    for (const auto& [what, x] :
         {std::pair<const char*, const Tensor&>("query", query), {"key", key}, {"value", value}})
        checks::dims("MultiheadAttention", what, x, 3, "(N, L, E)");
    if (key.size(0) != query.size(0) || value.size(0) != query.size(0))
        throw InvalidArgument(
            fmt::format("MultiheadAttention: query {}, key {} and value {} have different numbers of "
                        "rows; expected one batch",
                        query.shape().str(), key.shape().str(), value.shape().str()));
    const std::vector<Tensor> weight = chunk(in_proj_weight, 3);
    const std::vector<Tensor> bias = in_proj_bias ? chunk(*in_proj_bias, 3) : std::vector<Tensor>(3);
    // A causal mask by itself is not needed as a tensor.
    const bool is_causal = masks.is_causal && !masks.attn_mask.defined() && !masks.key_padding_mask.defined();
    const Tensor mask = is_causal ? Tensor() : joined_mask(masks, query, key);
    const Tensor heads = scaled_dot_product_attention(
        by_heads(linear(query, weight[0], bias[0]), num_heads), by_heads(linear(key, weight[1], bias[1]), num_heads),
        by_heads(linear(value, weight[2], bias[2]), num_heads),
        {.attn_mask = mask, .dropout_p = training ? dropout : 0, .is_causal = is_causal});
    const Tensor joined = heads.transpose(1, 2).reshape({query.size(0), query.size(1), query.size(2)});
    return out_proj.forward(tagged(joined, query.is_batch()));
}

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                                                 const TransformerEncoderLayerOptions& o)
    : self_attn(d_model, nhead, {o.dropout, o.bias}),
      linear1(d_model, o.dim_feedforward, o.bias),
      dropout(o.dropout),
      linear2(o.dim_feedforward, d_model, o.bias),
      norm1(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm2(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}),
      dropout1(o.dropout),
      dropout2(o.dropout),
      options(o) {}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionMasks& masks) const {
    const auto attention = [&](const Tensor& y) { return dropout1.forward(self_attn.forward(y, y, y, masks)); };
    if (options.norm_first) {
        const Tensor y = x + attention(norm1.forward(x));
        return y + feed_forward(*this, dropout2, norm2.forward(y));
    }
    const Tensor y = norm1.forward(x + attention(x));
    return norm2.forward(y + feed_forward(*this, dropout2, y));
}

TransformerEncoder::TransformerEncoder(const TransformerEncoderLayer& layer, int num_layers,
                                       std::optional<LayerNorm> last)
    : norm(std::move(last)) {
    require_positive("TransformerEncoder", "num_layers", num_layers);
    for (int i = 0; i < num_layers; ++i) layers.push_back(layer);
}

Tensor TransformerEncoder::forward(const Tensor& x, const AttentionMasks& masks) const {
    Tensor y = x;
    for (const TransformerEncoderLayer& layer : layers) y = layer.forward(y, masks);
    return norm ? norm->forward(y) : y;
}

TransformerDecoderLayer::TransformerDecoderLayer(std::int64_t d_model, std::int64_t nhead,
                                                 const TransformerDecoderLayerOptions& o)
    : self_attn(d_model, nhead, {o.dropout, o.bias}),
      multihead_attn(d_model, nhead, {o.dropout, o.bias}),
      linear1(d_model, o.dim_feedforward, o.bias),
      dropout(o.dropout),
      linear2(o.dim_feedforward, d_model, o.bias),
      norm1(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm2(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm3(d_model, {.eps = o.layer_norm_eps, .bias = o.bias}),
      dropout1(o.dropout),
      dropout2(o.dropout),
      dropout3(o.dropout),
      options(o) {}

Tensor TransformerDecoderLayer::forward(const Tensor& x, const Tensor& memory, const AttentionMasks& masks,
                                        const AttentionMasks& memory_masks) const {
    const auto to_itself = [&](const Tensor& y) { return dropout1.forward(self_attn.forward(y, y, y, masks)); };
    const auto to_memory = [&](const Tensor& y) {
        return dropout2.forward(multihead_attn.forward(y, memory, memory, memory_masks));
    };
    if (options.norm_first) {
        const Tensor y = x + to_itself(norm1.forward(x));
        const Tensor z = y + to_memory(norm2.forward(y));
        return z + feed_forward(*this, dropout3, norm3.forward(z));
    }
    const Tensor y = norm1.forward(x + to_itself(x));
    const Tensor z = norm2.forward(y + to_memory(y));
    return norm3.forward(z + feed_forward(*this, dropout3, z));
}

TransformerDecoder::TransformerDecoder(const TransformerDecoderLayer& layer, int num_layers,
                                       std::optional<LayerNorm> last)
    : norm(std::move(last)) {
    require_positive("TransformerDecoder", "num_layers", num_layers);
    for (int i = 0; i < num_layers; ++i) layers.push_back(layer);
}

Tensor TransformerDecoder::forward(const Tensor& x, const Tensor& memory, const AttentionMasks& masks,
                                   const AttentionMasks& memory_masks) const {
    Tensor y = x;
    for (const TransformerDecoderLayer& layer : layers) y = layer.forward(y, memory, masks, memory_masks);
    return norm ? norm->forward(y) : y;
}

namespace {

/// The options of an encoder or decoder layer of a transformer.
TransformerEncoderLayerOptions layer_options(const TransformerOptions& o) {
    return {o.dim_feedforward, o.dropout, o.activation, o.layer_norm_eps, o.norm_first, o.bias};
}

LayerNorm last_norm(std::int64_t d_model, const TransformerOptions& o) {
    return LayerNorm(d_model, {.eps = o.layer_norm_eps, .bias = o.bias});
}

}  // namespace

Transformer::Transformer(std::int64_t d_model, std::int64_t nhead, const TransformerOptions& o)
    : encoder(TransformerEncoderLayer(d_model, nhead, layer_options(o)), o.num_encoder_layers, last_norm(d_model, o)),
      decoder(TransformerDecoderLayer(d_model, nhead, layer_options(o)), o.num_decoder_layers, last_norm(d_model, o)) {
    for (const NamedTensor& named : named_tensors(*this))
        if (named.member->tensor().dims() > 1) init::xavier_uniform_(named.member->tensor());
}

Tensor Transformer::forward(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks) const {
    constexpr const char* name = "Transformer";
    checks::dims(name, "src", src, 3, "(N, S, E)");
    checks::dims(name, "tgt", tgt, 3, "(N, T, E)");
    const std::int64_t d_model = encoder.layers.front().linear2.weight->size(0);
    if (src.size(0) != tgt.size(0) || src.size(2) != d_model || tgt.size(2) != d_model)
        throw InvalidArgument(fmt::format("{}: src {} and tgt {}; expected equal numbers of rows, and {} features",
                                          name, src.shape().str(), tgt.shape().str(), d_model));
    const Tensor memory = encoder.forward(src, {masks.src_mask, masks.src_key_padding_mask, masks.src_is_causal});
    return decoder.forward(tgt, memory, {masks.tgt_mask, masks.tgt_key_padding_mask, masks.tgt_is_causal},
                           {masks.memory_mask, masks.memory_key_padding_mask, masks.memory_is_causal});
}

Tensor Transformer::generate_square_subsequent_mask(std::int64_t size, Device device, DType dtype) {
    require_positive("generate_square_subsequent_mask", "size", size);
    return triu(Tensor::full({size, size}, -std::numeric_limits<double>::infinity(), dtype, device), 1);
}

}  // namespace lockstep
