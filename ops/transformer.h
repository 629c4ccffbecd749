// Attention and transformer layers. Names, shapes and initial distributions of the parameters are PyTorch's. Dimension
// 0 is always the batch, as with batch_first=True in PyTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// Options of MultiheadAttention.
struct MultiheadAttentionOptions {
    double dropout = 0;  ///< probability of the weights of attention in training
    bool bias = true;
};

/// Positions that a call of MultiheadAttention attends to.
struct AttentionMasks {
    Tensor attn_mask = {};         ///< (L, S) or (N, heads, L, S); bool, true where a query attends, or numbers to add
    Tensor key_padding_mask = {};  ///< (N, S) bool, true for keys that are ignored, as in PyTorch
    bool is_causal = false;        ///< queries attend to keys up to their own position
};

/// torch.nn.MultiheadAttention with need_weights=False: heads of embed_dim / num_heads features. in_proj_weight
/// (3 embed_dim, embed_dim) ~ Xavier's uniform distribution, biases 0.
struct MultiheadAttention {
    MultiheadAttention(std::int64_t embed_dim, std::int64_t heads, const MultiheadAttentionOptions& options = {});

    Parameter in_proj_weight;
    std::optional<Parameter> in_proj_bias;
    Linear out_proj;
    std::int64_t num_heads;
    double dropout;
    bool training = true;
    LOCKSTEP_MEMBERS(in_proj_weight, in_proj_bias, out_proj)

    /// query (N, L, embed_dim), key and value (N, S, embed_dim). Out: (N, L, embed_dim).
    Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) const;
    Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionMasks& masks = {}) const {
        return forward(query, key, value, masks);
    }
    void describe(Signature& signature) const { signature.add(num_heads).add(dropout); }
};

/// Options of TransformerEncoderLayer.
struct TransformerEncoderLayerOptions {
    std::int64_t dim_feedforward = 2048;
    double dropout = 0.1;
    enum class Activation : std::uint8_t { relu, gelu } activation = Activation::relu;
    double layer_norm_eps = 1e-5;
    bool norm_first = false;
    bool bias = true;
};

/// torch.nn.TransformerEncoderLayer: attention of x to itself and two linear layers, each added to its input.
struct TransformerEncoderLayer {
    TransformerEncoderLayer(std::int64_t d_model, std::int64_t nhead,
                            const TransformerEncoderLayerOptions& options = {});

    MultiheadAttention self_attn;
    Linear linear1;
    Dropout dropout;
    Linear linear2;
    LayerNorm norm1, norm2;
    Dropout dropout1, dropout2;
    TransformerEncoderLayerOptions options;
    LOCKSTEP_MEMBERS(self_attn, linear1, dropout, linear2, norm1, norm2, dropout1, dropout2)

    /// x (N, L, d_model).
    Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const;
    Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const { return forward(x, masks); }
    void describe(Signature& signature) const { signature.add(options.activation).add(options.norm_first); }
};

/// torch.nn.TransformerEncoder: `num_layers` copies of a layer, which begin with its values, then `norm` if there is
/// one. Names: "layers.0.self_attn.in_proj_weight", "norm.weight".
struct TransformerEncoder {
    /// Throws InvalidArgument for fewer than one layer.
    TransformerEncoder(const TransformerEncoderLayer& layer, int num_layers,
                       std::optional<LayerNorm> last = std::nullopt);

    std::vector<TransformerEncoderLayer> layers;
    std::optional<LayerNorm> norm;
    LOCKSTEP_MEMBERS(layers, norm)

    /// x (N, L, d_model).
    Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const;
    Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const { return forward(x, masks); }
};

/// Options of TransformerDecoderLayer.
using TransformerDecoderLayerOptions = TransformerEncoderLayerOptions;

/// torch.nn.TransformerDecoderLayer: attention of x to itself, then to `memory`, and two linear layers, each added to
/// its input.
struct TransformerDecoderLayer {
    TransformerDecoderLayer(std::int64_t d_model, std::int64_t nhead,
                            const TransformerDecoderLayerOptions& options = {});

    MultiheadAttention self_attn, multihead_attn;
    Linear linear1;
    Dropout dropout;
    Linear linear2;
    LayerNorm norm1, norm2, norm3;
    Dropout dropout1, dropout2, dropout3;
    TransformerDecoderLayerOptions options;
    LOCKSTEP_MEMBERS(self_attn, multihead_attn, linear1, dropout, linear2, norm1, norm2, norm3, dropout1, dropout2,
                     dropout3)

    /// x (N, L, d_model), memory (N, S, d_model); masks of the attention to x and to the memory.
    Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                   const AttentionMasks& memory_masks = {}) const;
    Tensor operator()(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                      const AttentionMasks& memory_masks = {}) const {
        return forward(x, memory, masks, memory_masks);
    }
    void describe(Signature& signature) const { signature.add(options.activation).add(options.norm_first); }
};

/// torch.nn.TransformerDecoder; see TransformerEncoder.
struct TransformerDecoder {
    /// Throws InvalidArgument for fewer than one layer.
    TransformerDecoder(const TransformerDecoderLayer& layer, int num_layers,
                       std::optional<LayerNorm> last = std::nullopt);

    std::vector<TransformerDecoderLayer> layers;
    std::optional<LayerNorm> norm;
    LOCKSTEP_MEMBERS(layers, norm)

    /// x (N, L, d_model), memory (N, S, d_model).
    Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                   const AttentionMasks& memory_masks = {}) const;
    Tensor operator()(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                      const AttentionMasks& memory_masks = {}) const {
        return forward(x, memory, masks, memory_masks);
    }
};

}  // namespace lockstep
