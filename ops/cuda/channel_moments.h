// Mean and squared deviations of channels.
#pragma once

#include "lockstep/ops/cuda/channel_walk.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/arithmetic.h"

namespace lockstep::cuda {

/// Moments of the elements of a channel, relative to its first element so that a large mean costs no digits.
template <class Stored, int width>
struct ChannelMoments {
    using T = UpcastType<Stored>;
    using Value = element::Moments<T>;
    ChannelLayout layout;  // counts packs
    PackedInput<Stored, width> x;

    LOCKSTEP_HD_INLINE std::int64_t count() const { return layout.count() * width; }

    /// Adds the packs first, first + step, ... before end. Groups of elements are in registers: their mean is
    /// subtracted before squaring, and one division joins them to the others.
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t channel, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        constexpr int group = 8 / width;
        if (first >= end) return;
        ChannelWalk walk(layout, channel, first, step);
        const T start = origin(channel);
        std::int64_t k = first;
        for (; k + (group - 1) * step < end; k += group * step) {
            T differences[group * width];
            for (int i = 0; i < group; ++i) {
                const auto pack = x.load(walk.next());
                for (int j = 0; j < width; ++j) differences[i * width + j] = upcast(pack.of[j]) - start;
            }
            add(value, differences);
        }
        for (; k < end; k += step) {
            T differences[width];
            const auto pack = x.load(walk.next());
            for (int j = 0; j < width; ++j) differences[j] = upcast(pack.of[j]) - start;
            add(value, differences);
        }
    }
    /// Mean of a channel's elements; 0 without elements.
    LOCKSTEP_HD_INLINE T mean(std::int64_t channel, const Value& value) const {
        return layout.count() > 0 ? origin(channel) + value.mean : T(0);
    }

private:
    LOCKSTEP_HD_INLINE T origin(std::int64_t channel) const { return upcast(x.data[layout.first(channel) * width]); }
    template <int size>
    static LOCKSTEP_HD_INLINE void add(Value& value, const T (&values)[size]) {
        T sum = T(0), m2 = T(0);
        for (const T& each : values) sum += each;
        const T mean = sum * (T(1) / T(size));
        for (const T& each : values) m2 += (each - mean) * (each - mean);
        value = element::pool(value, {T(size), mean, m2});
    }
};

}  // namespace lockstep::cuda
