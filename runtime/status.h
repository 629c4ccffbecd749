// The status word: how a device reports that a step must not count.
#pragma once

#include <cstdint>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Result of a step.
enum class StatusCode : std::int32_t {
    good = 0,
    // The step is refused: an error.
    target_out_of_range = 1,
    loss_not_finite = 2,
    operation_failed = 3,
    gradients_not_finite = 4,
    index_out_of_range = 6,
    probability_out_of_range = 7,
    deviation_negative = 8,
    division_by_zero = 9,
    /// The step is skipped: it changes nothing, and training continues with the next one.
    skipped = 5
};

/// Lives in device memory. The first report is sticky: it stays until the host has thrown it. That of a skipped step
/// stays only until the next step.
struct StatusWord {
    std::int32_t code = 0;   ///< StatusCode
    std::int32_t shard = 0;  ///< lowest shard that reported
    std::int64_t step = 0;   ///< step in which it happened
    std::int64_t row = 0;    ///< global row of `value`
    std::int64_t value = 0;  ///< the target or index found; bits of the probability or deviation, an f64
};

}  // namespace lockstep
