// Softmax, its logarithm and losses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// in: x; out: exp(x) / sum(exp(x)) along dimension `dim`, or its logarithm
template <bool logarithm>
struct SoftmaxForward {
    static constexpr const char* name = logarithm ? "log_softmax_forward" : "softmax_forward";
    int dim;
};
/// in: dy, y; out: dx = y * (dy - sum(dy * y)) along `dim`; of the logarithm dy - exp(y) * sum(dy)
template <bool logarithm>
struct SoftmaxBackward {
    static constexpr const char* name = logarithm ? "log_softmax_backward" : "softmax_backward";
    int dim;
};
/// in: log_probabilities (N, C, ...), target (N, ...) i64, class weights (C) or undefined; out: numerator (scalar)
/// = sum of -w[t] * logp[t], weight (scalar) = sum of w[t], over positions whose target is not ignore_index. A target
/// outside 0..C-1 that is not ignore_index is reported in the status word (StatusCode::target_out_of_range, with row
/// and value) and counts 0.
struct NllForward {
    static constexpr const char* name = "nll_forward";
    static constexpr bool reports_status = true;
    /// The weight alone does not need the log-probabilities.
    static constexpr bool depends(std::size_t output, std::size_t input) { return output == 0 || input != 0; }
    std::int64_t ignore_index;
};
/// in: gradient of the numerator (scalar), target, class weights or undefined; out: dlogp (N, C, ...)
struct NllBackward {
    static constexpr const char* name = "nll_backward";
    std::int64_t ignore_index;
};
/// in: a, b (same shape); out: sum of (a - b)^2 (scalar)
struct SquaredErrorForward {
    static constexpr const char* name = "squared_error_forward";
};
/// in: gradient (scalar), a, b; out: 2 * gradient * (a - b)
struct SquaredErrorBackward {
    static constexpr const char* name = "squared_error_backward";
};
/// in: value (scalar); reports StatusCode::loss_not_finite in the status word; out: value
struct CheckFinite {
    static constexpr const char* name = "check_finite";
    static constexpr bool reports_status = true;
};

}  // namespace lockstep
