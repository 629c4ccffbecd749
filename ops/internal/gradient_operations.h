// What happens to gradients between the last of them and the first update: their norm, what it means for the step, and
// clipping. Kernels: ops/cpu/gradients.cpp, ops/cuda/gradients.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

/// Which elements of a range are meant: those of the parameters of a group, or of all groups of the optimizer.
struct GradientRange {
    static constexpr int all_groups = -1;
    ArenaRange range;
    std::size_t row_bytes = 0;  ///< of rows; 0: there are none, and the range is one parameter
    int group = all_groups;
};

/// Sums of powers, or largest magnitudes, of 64 elements each: ranges are cut at multiples of that, so the numbers are
/// the same however an arena is cut.
/// in: gradients (elements), rows or undefined; out: f64 (elements / 64, rounded up): for the elements of a grain that
/// are meant, sum of |g|^order, or the largest |g| where `order` is infinite. NaN stays NaN.
struct MeasureGradients {
    static constexpr const char* name = "measure_gradients";
    static constexpr std::int64_t grain = 64;
    static std::int64_t grains(std::int64_t elements) { return (elements + grain - 1) / grain; }
    GradientRange range;
    double order;
};

/// in: what grains came to, f64 (grains); out: f64 scalar, the norm of all elements: (sum)^(1 / order), or the largest
struct CombineMeasures {
    static constexpr const char* name = "gradient_norm";
    double order;
};

/// in: norm (f64 scalar); out: f64 scalar, what gradients are multiplied by: max_norm / (norm + 1e-6), at most 1
struct ClipCoefficient {
    static constexpr const char* name = "clip_coefficient";
    double max_norm;
};

/// Says of a step that is good so far that it is skipped or refused, where the norm is not finite.
/// in: norm (f64 scalar); out: the agreed status word, in place
struct JudgeNorm {
    static constexpr const char* name = "judge_norm";
    bool refuses;
};

/// in: LossScale (u8 bytes); out: f64 scalar, what gradients of a scaled loss are multiplied by: 1 / scale, in f32
struct UnscaleFactor {
    static constexpr const char* name = "unscale_factor";
};

/// torch.amp.GradScaler's rule, where the step is good or skipped: a scale that has done for `growth_interval` good
/// steps grows, that of a skipped step backs off. A step that is refused changes nothing.
/// out: LossScale (u8 bytes), in place
struct UpdateLossScale {
    static constexpr const char* name = "update_loss_scale";
    double growth_factor, backoff_factor;
    std::int64_t growth_interval;
    bool commits() const { return true; }
};

/// in: factor (f64 scalar), rows or undefined; out: gradients (elements), in place
struct ScaleGradients {
    static constexpr const char* name = "scale_gradients";
    GradientRange range;
};

/// in: rows or undefined; out: gradients (elements), in place, brought into [-limit, limit]; NaN stays NaN
struct ClampGradients {
    static constexpr const char* name = "clamp_gradients";
    GradientRange range;
    double limit;
};

}  // namespace lockstep
