// Mean and squared deviations of channels.
#pragma once

#include "lockstep/ops/cuda/channel_walk.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/arithmetic.h"

namespace lockstep::cuda {

/// element::pool, which divides only if the numbers of values differ.
template <class T>
LOCKSTEP_HD_INLINE element::Moments<T> pool_evenly(const element::Moments<T>& a, const element::Moments<T>& b) {
    if (a.count == T(0)) return b;
    if (a.count != b.count) return element::pool(a, b);
    const T delta = b.mean - a.mean;
    return {a.count + b.count, a.mean + delta * T(0.5), a.m2 + b.m2 + delta * delta * a.count * T(0.5)};
}

/// Moments of channels, relative to the first element of each so that a large mean costs no digits. Packs have elements
/// of one channel, or if `across` one element each of `width` adjacent channels.
template <class Stored, int width, bool across = false>
struct ChannelMoments {
    using T = UpcastType<Stored>;
    static constexpr int channels = across ? width : 1;
    struct alignas(channels % 4 == 0 ? 16 : alignof(T)) Value {
        element::Moments<T> of[channels];
    };
    ChannelLayout layout;  // counts packs
    PackedInput<Stored, width> x;

    /// Number of elements of a channel.
    LOCKSTEP_HD_INLINE std::int64_t count() const { return layout.count() * (across ? 1 : width); }

    /// Adds the packs first, first + step, ... before end. Groups of elements are in registers: their mean is
    /// subtracted before squaring, and one division joins them to the others.
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        constexpr int group = (across ? 32 : 16) / width;
        if (first >= end) return;
        ChannelWalk walk(layout, output, first, step);
        const Pack<T, channels> start = origin(output);
        std::int64_t k = first;
        for (; k + (group - 1) * step < end; k += group * step) add_group<group>(value, walk, start);
        for (; k < end; k += step) add_group<1>(value, walk, start);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        for (int c = 0; c < channels; ++c) value.of[c] = pool_evenly(value.of[c], other.of[c]);
    }
    /// Mean of channel `output` * channels + c; 0 without elements.
    LOCKSTEP_HD_INLINE T mean(std::int64_t output, int c, const Value& value) const {
        return layout.count() > 0 ? origin(output).of[c] + value.of[c].mean : T(0);
    }

private:
    LOCKSTEP_HD_INLINE Pack<T, channels> origin(std::int64_t output) const {
        const Pack<Stored, width> pack = x.load(layout.first(output));
        Pack<T, channels> start;
        for (int c = 0; c < channels; ++c) start.of[c] = upcast(pack.of[c]);
        return start;
    }
    template <int group>
    LOCKSTEP_HD_INLINE void add_group(Value& value, ChannelWalk& walk, const Pack<T, channels>& start) const {
        Pack<Stored, width> packs[group];
        LOCKSTEP_UNROLL
        for (int i = 0; i < group; ++i) packs[i] = x.load(walk.next());
        constexpr int elements = group * width / channels;  // per channel
        LOCKSTEP_UNROLL
        for (int c = 0; c < channels; ++c) {
            T differences[elements], sum = T(0), m2 = T(0);
            LOCKSTEP_UNROLL
            for (int e = 0; e < elements; ++e) {
                const Stored stored = across ? packs[e].of[c] : packs[e / width].of[e % width];
                differences[e] = upcast(stored) - start.of[c];
                sum += differences[e];
            }
            const T mean = sum * (T(1) / T(elements));
            LOCKSTEP_UNROLL
            for (int e = 0; e < elements; ++e) m2 += (differences[e] - mean) * (differences[e] - mean);
            value.of[c] = pool_evenly(value.of[c], {T(elements), mean, m2});
        }
    }
};

}  // namespace lockstep::cuda
