// Integer division that rounds up, for sizes, numbers of blocks and alignment.
#pragma once

#include <type_traits>

#include "lockstep/runtime/host_device.h"

namespace lockstep {

/// a / b rounded up; b > 0. Does not overflow.
template <class T>
LOCKSTEP_HD_INLINE constexpr T ceil_div(T a, std::type_identity_t<T> b) {
    static_assert(std::is_integral_v<T>);
    return a / b + (a % b > 0 ? 1 : 0);
}

/// The smallest multiple of `unit` that is not below `x`; unit > 0. The result must be representable.
template <class T>
LOCKSTEP_HD_INLINE constexpr T round_up(T x, std::type_identity_t<T> unit) {
    return ceil_div(x, unit) * unit;
}

}  // namespace lockstep
