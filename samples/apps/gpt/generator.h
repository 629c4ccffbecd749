// Text from a trained GPT, character by character.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/runtime/tensor.h"
#include "lockstep/samples/apps/gpt/net.h"

namespace gpt {

/// Predicts the next character of a growing text. Keys and values of earlier characters are kept, so that a character
/// costs one position of the network. A text that exceeds the context is continued with its last half.
class Generator {
public:
    /// `net`, in evaluation mode, must outlive this object and stay unchanged.
    explicit Generator(const Gpt& net) : net_(net), cache_(net.blocks.size()) {}

    /// Appends a character and returns the logits of the next one, (vocabulary).
    lockstep::Tensor append(std::int64_t character);

private:
    struct Cache {
        lockstep::Tensor keys, values;  ///< (1, heads, length, features)
    };
    lockstep::Tensor predict(std::int64_t character);

    const Gpt& net_;
    std::vector<Cache> cache_;
    std::vector<std::int64_t> text_;  ///< characters in the cache
};

}  // namespace gpt
