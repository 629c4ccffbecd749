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

/// Options of Transformer.
struct TransformerOptions {
    int num_encoder_layers = 6;
    int num_decoder_layers = 6;
    std::int64_t dim_feedforward = 2048;
    double dropout = 0.1;
    TransformerEncoderLayerOptions::Activation activation = TransformerEncoderLayerOptions::Activation::relu;
    double layer_norm_eps = 1e-5;
    bool norm_first = false;
    bool bias = true;
};

/// Positions that a call of Transformer attends to, with PyTorch's names; see AttentionMasks. A mask of bool is true
/// where a query attends.
struct TransformerMasks {
    Tensor src_mask = {};                 ///< (S, S) or (N, heads, S, S): of the source to itself
    Tensor tgt_mask = {};                 ///< (T, T) or (N, heads, T, T): of the target to itself
    Tensor memory_mask = {};              ///< (T, S) or (N, heads, T, S): of the target to the encoder's output
    Tensor src_key_padding_mask = {};     ///< (N, S) bool, true for positions of the source that are ignored
    Tensor tgt_key_padding_mask = {};     ///< (N, T)
    Tensor memory_key_padding_mask = {};  ///< (N, S); mostly equal to src_key_padding_mask
    bool src_is_causal = false, tgt_is_causal = false, memory_is_causal = false;
};

/// torch.nn.Transformer with batch_first=True (Vaswani et al. 2017): a TransformerEncoder and a TransformerDecoder,
/// both with a LayerNorm at their end. All matrices ~ Xavier's uniform distribution.
struct Transformer {
    /// Throws InvalidArgument.
    explicit Transformer(std::int64_t d_model = 512, std::int64_t nhead = 8, const TransformerOptions& options = {});

    TransformerEncoder encoder;
    TransformerDecoder decoder;
    LOCKSTEP_MEMBERS(encoder, decoder)

    /// src (N, S, d_model), tgt (N, T, d_model). Out: (N, T, d_model). Throws InvalidArgument for other shapes.
    Tensor forward(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks = {}) const;
    Tensor operator()(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks = {}) const {
        return forward(src, tgt, masks);
    }
    /// (size, size) numbers to add to scores: 0 up to the position of the query, -inf after it; the same as is_causal.
    static Tensor generate_square_subsequent_mask(std::int64_t size, Device device = {}, DType dtype = DType::f32);
};

}  // namespace lockstep
