// Operations of optimizers: updates, and measures of gradients before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/operation.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

// Operations on the rows of an arena's parameters, and further building blocks of the library's own updates. Kernels:
// ops/cpu/update.cpp, ops/cuda/update.cu.

/// Copies the host's values to every row, except the number of updates, which devices count themselves.
/// in: new rows (bytes); out: rows, in place
struct StoreRows {
    static constexpr const char* name = "store_rows";
    std::size_t row_bytes;
};

/// Counts an update of those of `parameters` whose updates count, if the step is good.
/// out: rows, in place
struct CountUpdates {
    static constexpr const char* name = "count_updates";
    std::size_t row_bytes;
    std::vector<int> parameters;
    bool commits() const { return true; }
};

/// A number of a row.
enum class RowNumber : std::uint8_t {
    real,    ///< a double at the offset
    flag,    ///< a bool at the offset, as 0 or 1
    updates  ///< ParameterRow::updates + 1, which includes the present update
};
/// in: rows (bytes); out: (elements), for every element the number in its parameter's row, 0 in gaps; or (), if the
/// range has one parameter, the number in its row
struct ReadRows {
    static constexpr const char* name = "read_rows";
    static constexpr bool is_elementwise = true;
    ArenaRange range;
    std::size_t row_bytes, offset;
    RowNumber number;
};

/// Norms of the parameters of a range from the sums of its grains.
/// in: result of MeasureUpdate for the range, rows (bytes); out: ParameterNorms of the arena's parameters (f64, two
/// each), in place: those of the range
struct CombineNorms {
    static constexpr const char* name = "parameter_norms";
    ArenaRange range;
    std::size_t row_bytes;
};

/// Overwrites elements of trainable parameters with the given values, if the step is good; gaps are unchanged.
/// in: rows (bytes), values (elements); out (in place): the range of an arena (elements)
struct StoreRange {
    static constexpr const char* name = "store_range";
    static constexpr bool is_elementwise = true;
    ArenaRange range;
    std::size_t row_bytes;
    bool commits() const { return true; }
};

// Operations on gradients between the backward pass and the first update: their norm, its effect on the step, and
// clipping. Kernels: ops/cpu/gradients.cpp, ops/cuda/gradients.cu.

/// Selected elements of a range: those of the parameters of a group, or of all groups of the optimizer.
struct GradientRange {
    static constexpr int all_groups = -1;
    ArenaRange range;
    std::size_t row_bytes = 0;  ///< size of a row; 0: there are no rows, and the range is one parameter
    int group = all_groups;
};

/// Sums of powers, or largest magnitudes, of 64 elements each: ranges are divided at multiples of that, so the numbers
/// do not depend on the division of an arena.
/// in: gradients (elements), rows or undefined; out: f64 (elements / 64, rounded up): for the selected elements of a
/// grain, sum of |g|^order, or the largest |g| if `order` is infinite. NaN is preserved.
struct MeasureGradients {
    static constexpr const char* name = "measure_gradients";
    static constexpr std::int64_t grain = 64;
    static std::int64_t grains(std::int64_t elements) { return ceil_div(elements, grain); }
    GradientRange range;
    double order;
};

/// in: results of the grains, f64 (grains); out: f64 scalar, the norm of all elements: (sum)^(1 / order), or the
/// largest
struct CombineMeasures {
    static constexpr const char* name = "gradient_norm";
    double order;
};

/// in: norm (f64 scalar); out: f64 scalar, factor for the gradients: max_norm / (norm + 1e-6), at most 1
struct ClipCoefficient {
    static constexpr const char* name = "clip_coefficient";
    double max_norm;
};

/// Marks a step that is good so far as skipped or refused, if the norm is not finite.
/// in: norm (f64 scalar); out: the agreed status word, in place
struct CheckGradNorm {
    static constexpr const char* name = "check_grad_norm";
    bool refuses;
};

/// in: LossScale (u8 bytes); out: f64 scalar, factor for the gradients of a scaled loss: 1 / scale, in f32
struct UnscaleFactor {
    static constexpr const char* name = "unscale_factor";
};

/// torch.amp.GradScaler's rule, if the step is good or skipped: the scale grows after `growth_interval` good steps, and
/// backs off after a skipped step. A refused step changes nothing.
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

/// in: rows or undefined; out: gradients (elements), in place, clamped to [-limit, limit]; NaN is preserved
struct ClampGradients {
    static constexpr const char* name = "clamp_gradients";
    GradientRange range;
    double limit;
};

}  // namespace lockstep
