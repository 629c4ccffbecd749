// The two orders of convolution weights: that of their arena, (K, C, taps), and cuDNN's for channels-last images,
// (K, taps, C). A thread moves all taps of as many adjacent channels as one access holds: they are adjacent in one
// order, and in the other the channels of each tap are.
#pragma once

#include <type_traits>

#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

/// `value` as a To; elements of one type are copied without interpretation.
template <class To, class From>
LOCKSTEP_HD_INLINE To converted(From value) {
    if constexpr (std::is_same_v<From, To>)
        return value;
    else
        return CastTo<To>::from(upcast(value));
}

/// In cuDNN's order, the first element of the channels of thread `i`.
template <int width, int taps>
LOCKSTEP_HD_INLINE std::int64_t first_by_taps(std::int64_t i, std::int64_t packs) {
    const std::int64_t filter = quick_quotient(i, packs);
    return (filter * packs * taps + (i - filter * packs)) * width;
}

/// To cuDNN's order; channels are a multiple of `width`, addresses of 16 bytes.
template <class From, class To, int taps>
struct FilterToLast {
    static constexpr int width = widest<To>;
    std::int64_t packs;  // per filter
    const From* from;
    To* to;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        constexpr int part_width = widest<From>;
        To adjacent[taps * width];
        LOCKSTEP_UNROLL
        for (int p = 0; p < taps * width / part_width; ++p) {
            From part[part_width];
            load_chunk(from + i * taps * width + p * part_width, part);
            LOCKSTEP_UNROLL
            for (int e = 0; e < part_width; ++e) adjacent[p * part_width + e] = converted<To>(part[e]);
        }
        LOCKSTEP_UNROLL
        for (int t = 0; t < taps; ++t) {
            To values[width];
            LOCKSTEP_UNROLL
            for (int c = 0; c < width; ++c) values[c] = adjacent[c * taps + t];
            store_chunk(values, to + first_by_taps<width, taps>(i, packs) + t * packs * width);
        }
    }
};

/// Back to the order of the arena; channels are a multiple of `width`, addresses of 16 bytes.
template <class From, class To, int taps>
struct FilterToRows {
    static constexpr int resident_blocks = taps > 4 && sizeof(From) < sizeof(To) ? 3 : 0;
    static constexpr int width = widest<From>;
    std::int64_t packs;  // per filter
    const From* from;
    To* to;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        From values[taps][width];
        LOCKSTEP_UNROLL
        for (int t = 0; t < taps; ++t)
            load_chunk(from + first_by_taps<width, taps>(i, packs) + t * packs * width, values[t]);
        constexpr int part_width = widest<To>;
        LOCKSTEP_UNROLL
        for (int p = 0; p < taps * width / part_width; ++p) {
            To part[part_width];
            LOCKSTEP_UNROLL
            for (int e = 0; e < part_width; ++e) {
                const int at = p * part_width + e;
                part[e] = converted<To>(values[at % taps][at / taps]);
            }
            store_chunk(part, to + i * taps * width + p * part_width);
        }
    }
};

}  // namespace lockstep::cuda
