// Unsigned integers in the order of numbers, by which elements are sorted: NaN is larger than every number, and zeros
// are equal.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "lockstep/runtime/host_device.h"

namespace lockstep::element {

template <class T>
using OrderKey = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// The key of x; in the opposite order if `descending`.
template <class T>
LOCKSTEP_HD_INLINE OrderKey<T> order_key(T x, bool descending) {
    using Key = OrderKey<T>;
    constexpr Key sign = Key(1) << (8 * sizeof(Key) - 1);
    if constexpr (std::is_integral_v<T>) {
        const Key key = static_cast<Key>(x) ^ sign;
        return descending ? ~key : key;
    } else {
        const Key bits = std::bit_cast<Key>(x == T(0) ? T(0) : x);
        // All bits of negative numbers, and the sign of others, are inverted. Without a branch, which random signs
        // mispredict.
        const Key number = bits ^ (static_cast<Key>(-(bits >> (8 * sizeof(Key) - 1))) | sign);
        const Key key = x != x ? static_cast<Key>(-1) : number;
        return descending ? ~key : key;
    }
}

}  // namespace lockstep::element
