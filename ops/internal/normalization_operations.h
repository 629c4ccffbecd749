// Normalisation: of batches over (N, H, W), of layers over the last dimensions.
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// in: x (N, C, H, W), any layout; out: stats (2C + 1): mean of every channel, M2 (sum of squared deviations) of every
/// channel, and the count N*H*W
struct BatchNormStats {
    static constexpr const char* name = "batch_norm_stats";
};
/// Stats of all shards pooled along the tree of shards (Chan et al.), or those of shard 0 alone where `first_only`.
/// in: stats (2C + 1); out: stats (2C + 1)
struct BatchNormPoolStats {
    static constexpr const char* name = "batch_norm_pool_stats";
    static constexpr Reach reach = Reach::all_shards;
    bool first_only;
};
/// in: x, stats (2C + 1), weight (C) or undefined (1), bias (C) or undefined (0); out: y = (x - mean) / sqrt(M2 / count
/// + eps) * weight + bias, laid out as x
struct BatchNormNormalize {
    static constexpr const char* name = "batch_norm_normalize";
    double eps;
};
/// in: x, dy, stats; out: sums (2C): sum of dy, sum of dy * xhat (which are dbias and dweight)
struct BatchNormBackwardSums {
    static constexpr const char* name = "batch_norm_backward_sums";
    double eps;
};
/// in: x, dy, stats, weight (C) or undefined (1), sums (2C) or undefined (0: nothing flows through the statistics);
/// out: dx, laid out as x; the sums are divided by the count in stats
struct BatchNormBackwardData {
    static constexpr const char* name = "batch_norm_backward_data";
    double eps;
};
/// running = (1 - momentum) * running + momentum * value, variance with M2 / (count - 1). Runs when the step is good.
/// in: stats (2C + 1); out (both written in place): running_mean (C), running_var (C)
struct BatchNormUpdateRunning {
    static constexpr const char* name = "batch_norm_update_running";
    double momentum;
    bool commits() const { return true; }
};
/// The last `dims` dimensions of x are a layer of n elements, those before them rows.
/// in: x, weight (n elements) or undefined (1), bias (n elements) or undefined (0); out: y = (x - mean) * deviation *
/// weight + bias, mean (rows) or undefined, deviation (rows) or undefined: 1 / sqrt(biased variance + eps)
struct LayerNormForward {
    static constexpr const char* name = "layer_norm_forward";
    int dims;
    double eps;
};
/// in: dy, x, mean (rows), deviation (rows), weight or undefined; out: dx
struct LayerNormBackwardData {
    static constexpr const char* name = "layer_norm_backward_data";
    int dims;
};
/// in: dy, x, mean (rows), deviation (rows); out: dweight or undefined, dbias or undefined
struct LayerNormBackwardWeights {
    static constexpr const char* name = "layer_norm_backward_weights";
    int dims;
};
/// out (in place, i64 scalar): counter + 1. Runs when the step is good.
struct IncrementCounter {
    static constexpr const char* name = "increment_counter";
    bool commits() const { return true; }
};

}  // namespace lockstep
