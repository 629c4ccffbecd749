// Random masks.
#pragma once

#include "lockstep/runtime/operation.h"

namespace lockstep {

/// out: mask, contiguous: 0 with probability p, else 1 / (1 - p). Element e of the shard's mask is drawn with counter
/// first_row * row_size + e where dimension 0 is the batch (row_size: elements that a row of the mask has), else with
/// counter (shard << 40) + e.
struct DropoutMask {
    static constexpr const char* name = "dropout_mask";
    static constexpr bool is_random = true;
    double p;
    bool batch;
};

}  // namespace lockstep
