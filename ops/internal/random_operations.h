// Operations that draw random numbers (runtime/random.h).
#pragma once

#include <cstdint>

#include "lockstep/runtime/host_device.h"

namespace lockstep {

/// Number of element e of a shard's tensor, by which it is drawn: the same on any number of devices.
enum class DrawBy : std::uint8_t {
    row,     ///< dimension 0 is the batch: first_row * row_size + e (row_size: elements of a row)
    shard,   ///< the value depends on the shard: (shard << 40) + e
    element  ///< all shards have the same numbers: e
};

namespace element {

/// Number of element 0 of a shard's tensor.
LOCKSTEP_HD_INLINE std::uint64_t first_draw(DrawBy by, std::int64_t first_row, std::int64_t row_size, int shard) {
    if (by == DrawBy::row) return static_cast<std::uint64_t>(first_row * row_size);
    return by == DrawBy::shard ? static_cast<std::uint64_t>(shard) << 40 : 0;
}

}  // namespace element

enum class Distribution : std::uint8_t {
    uniform,    ///< [0, 1), with as many bits as the dtype can represent throughout
    normal,     ///< mean 0, standard deviation 1
    bernoulli,  ///< 1 with probability p, else 0
    dropout     ///< 0 with probability p, else 1 / (1 - p)
};

/// out: random numbers, contiguous. A number of f64 that is uniform or normal uses two words of random bits, with the
/// counters 2 n and 2 n + 1 for element number n; all others use one, with counter n. p is rounded to f32.
struct RandomValues {
    static constexpr const char* name = "random_values";
    static constexpr bool is_random = true;
    Distribution distribution;
    double p;
    DrawBy by;
};
/// in: parameters, contiguous; out: a random number for each. uniform < p if `distribution` is bernoulli, with the
/// parameter p; std * normal if it is normal, with the parameter std. `per_row`: parameters in a row. A probability
/// outside [0, 1] and a negative std are reported, as is NaN.
struct RandomValuesOf {
    static constexpr const char* name = "random_values_of";
    static constexpr bool is_random = true;
    static constexpr bool reports_status = true;
    Distribution distribution;
    std::int64_t per_row;
    DrawBy by;
};

/// in: x; out: y = x * the mask that RandomValues draws, in the layout of x, and kept (u8, contiguous): 1 where the
/// mask is not 0
struct DropoutForward {
    static constexpr const char* name = "dropout_forward";
    static constexpr bool is_random = true;
    double p;
    DrawBy by;
};
/// in: dy, kept; out: dx = dy * mask, in the layout of dy
struct DropoutBackward {
    static constexpr const char* name = "dropout_backward";
    double p;
};

}  // namespace lockstep
