// Operations of attention. The scores exist for a block of queries at a time, and backward computes them again.
// Operands have four dimensions: query (N, H, L, E), key (N, G, S, E) and value (N, G, S, Ev), strided; head h uses
// group h / (H / G). A mask of bool, or of numbers to add, has the sizes of the scores (N, H, L, S) or 1.
#pragma once

#include <cstdint>

#include "lockstep/ops/internal/random_operations.h"
#include "lockstep/runtime/random.h"

namespace lockstep {

/// Random numbers of a dropout mask: what an i64 tensor of `attention_draws_size` elements holds. Number of element e
/// of the scores: first + e.
struct AttentionDraws {
    StepCounters state;
    std::uint64_t ordinal, first;
};
constexpr std::int64_t attention_draws_size = sizeof(AttentionDraws) / sizeof(std::int64_t);

/// in: query, key, value, mask or undefined; out: y (N, H, L, Ev), statistics (2, N, H, L) or undefined: the largest
/// score of every query, and 1 / the sum of the powers of all (f32 for 16-bit operands), draws or undefined. A query
/// that attends to no key gives 0.
template <bool drops>
struct AttentionForward {
    static constexpr const char* name = drops ? "attention_dropout_forward" : "attention_forward";
    static constexpr bool is_random = drops;
    bool is_causal;
    double scale;
    double p;               ///< with `drops`: probability of a weight to become 0
    DrawBy by;              ///< with `drops`
    std::int64_t row_size;  ///< with `drops`: scores of a row of the batch
};
/// in: dy, query, key, value, mask or undefined, statistics, draws or undefined (no dropout); out: dquery, dkey,
/// dvalue, all contiguous or undefined
struct AttentionBackward {
    static constexpr const char* name = "attention_backward";
    bool is_causal;
    double scale;
    double p;
};
/// in: draws; out: factors of the weights (contiguous), 0 or 1 / (1 - p)
struct AttentionDropoutMask {
    static constexpr const char* name = "attention_dropout_mask";
    double p;
};

}  // namespace lockstep
