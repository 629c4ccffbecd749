// A small GPT: a transformer that predicts the next character of a text (Radford et al. 2018).
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/init.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"
#include "lockstep/ops/transformer.h"

namespace gpt {

struct Config {
    std::int64_t vocabulary = 0;  ///< number of different characters
    std::int64_t context = 128;   ///< characters that a prediction depends on
    std::int64_t width = 128, heads = 4, layers = 4;
    double dropout = 0.1;
    bool operator==(const Config&) const = default;
};

/// Blocks that normalise first. The embedding of the characters is also the weight of the last layer.
struct Gpt {
    explicit Gpt(const Config& config)
        : tokens(config.vocabulary, config.width),
          positions(config.context, config.width),
          dropout(config.dropout),
          norm(config.width),
          head(config.width, config.vocabulary, false) {
        for (std::int64_t i = 0; i < config.layers; ++i)
            blocks.emplace_back(config.width, config.heads,
                                lockstep::TransformerEncoderLayerOptions{
                                    .dim_feedforward = 4 * config.width,
                                    .dropout = config.dropout,
                                    .activation = lockstep::TransformerEncoderLayerOptions::Activation::gelu,
                                    .norm_first = true});
        for (lockstep::Embedding* table : {&tokens, &positions})
            lockstep::init::normal_(table->weight.tensor(), 0, 0.02);
        tie(tokens.weight, head.weight);
    }

    lockstep::Embedding tokens, positions;
    lockstep::Dropout dropout;
    std::vector<lockstep::TransformerEncoderLayer> blocks;
    lockstep::LayerNorm norm;
    lockstep::Linear head;
    LOCKSTEP_MEMBERS(tokens, positions, dropout, blocks, norm, head)

    /// Numbers of characters, i64 (N, T) with T up to the context. Out: logits of the character after each, (N,
    /// vocabulary, T).
    lockstep::Tensor forward(const lockstep::Tensor& text) const {
        lockstep::Tensor x = dropout(tokens(text) + positions.weight.tensor().slice(0, 0, text.size(1)));
        for (const lockstep::TransformerEncoderLayer& block : blocks) x = block(x, {.is_causal = true});
        return head(norm(x)).transpose(1, 2);
    }
};

}  // namespace gpt
