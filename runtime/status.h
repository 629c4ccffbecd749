// The status word: how a device says that a step must not count.
#pragma once

#include <cstdint>

namespace lockstep {

enum class StatusCode : std::int32_t {
    good = 0,
    // The step is refused: an error.
    target_out_of_range = 1,
    loss_not_finite = 2,
    operation_failed = 3,
    gradients_not_finite = 4,
    /// The step is skipped: it changes nothing, and the next one goes on.
    skipped = 5
};

/// Lives in device memory; the first report stays (it is sticky) until the host has thrown it, but that of a skipped
/// step only until the next step.
struct StatusWord {
    std::int32_t code = 0;   ///< StatusCode
    std::int32_t shard = 0;  ///< lowest shard that reported
    std::int64_t step = 0;   ///< step it happened in
    std::int64_t row = 0;    ///< global row, for target_out_of_range
    std::int64_t value = 0;  ///< the target found
};

}  // namespace lockstep
