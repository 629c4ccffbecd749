// Draws of one of two values, by integers.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

/// to_uniform(word) < p, rounded to f32, if and only if the 24 bits that it uses are below this.
inline std::uint32_t threshold_of(double p) {
    return static_cast<std::uint32_t>(std::ceil(static_cast<double>(static_cast<float>(p)) * (1 << 24)));
}
LOCKSTEP_HD_INLINE bool is_below(std::uint32_t word, std::uint32_t threshold) { return word >> 8 < threshold; }

}  // namespace lockstep::cuda
