// Mean and squared deviations of channels.
#pragma once

#include "lockstep/ops/cuda/channel_walk.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/row_kernels.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/arithmetic.h"

namespace lockstep::cuda {

/// Moments of channels, relative to the first element of each so that a large mean costs no digits. Packs have elements
/// of one channel, or if `across` one element each of `width` adjacent channels.
template <class Stored, int width, bool across = false>
struct ChannelMoments {
    using T = UpcastType<Stored>;
    static constexpr int channels = across ? width : 1;
    /// element::Moments of channels, which have the same number of values.
    struct alignas(channels % 4 == 0 ? 16 : alignof(T)) Value {
        T mean[channels], m2[channels];
        T count[channels % 4 == 0 ? 4 : 1];  // the first element; the others fill a chunk of 16 bytes
    };
    ChannelLayout layout;  // counts packs
    PackedInput<Stored, width> x;

    /// Number of elements of a channel.
    LOCKSTEP_HD_INLINE std::int64_t count() const { return layout.count() * (across ? 1 : width); }

    /// Adds the packs first, first + step, ... before end. Groups of elements are in registers: their mean is
    /// subtracted before squaring, and at most one division joins them to the others.
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        // As many as registers hold, and no more than the elements of a lane in ReducePlan::make.
        constexpr int least = across || (width > 1 && sizeof(Stored) == 2) ? 32 : 16;
        constexpr int group = least / width / (sizeof(T) > 4 ? 2 : 1);
        if (first >= end) return;
        ChannelWalk walk(layout, output, first, step);
        const Pack<T, channels> start = origin(output);
        std::int64_t k = first;
        for (; k + (group - 1) * step < end; k += group * step) add_group<group>(value, walk, start);
        for (; k < end; k += step) add_group<1>(value, walk, start);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        if (other.count[0] == T(0)) return;
        const Shares of(value.count[0], other.count[0]);
        for (int c = 0; c < channels; ++c) of.pool(value, c, other.mean[c], other.m2[c]);
        value.count[0] += other.count[0];
    }
    /// The moments of all lanes, from three sums: fewer instructions than joins of two lanes.
    template <class Group>
    LOCKSTEP_ROW_FUNCTION Value joined(const Value& own, const Group& group) const {
        static_assert(channels == 1);
        Value all = {};
        all.count[0] = sum_of(group, own.count[0]);
        if (all.count[0] == T(0)) return all;
        all.mean[0] = sum_of(group, own.count[0] * own.mean[0]) / all.count[0];
        const T deviation = own.mean[0] - all.mean[0];
        all.m2[0] = sum_of(group, own.m2[0] + own.count[0] * deviation * deviation);
        return all;
    }
    /// Mean of channel `output` * channels + c; 0 without elements.
    LOCKSTEP_HD_INLINE T mean(std::int64_t output, int c, const Value& value) const {
        return layout.count() > 0 ? origin(output).of[c] + value.mean[c] : T(0);
    }

private:
    /// element::pool for several channels. Divides only if the numbers of values differ.
    struct Shares {
        T share, product;
        LOCKSTEP_HD_INLINE Shares(T count, T more)
            : share(count == more   ? T(0.5)
                    : count == T(0) ? T(1)
                                    : more / (count + more)),
              product(count * share) {}
        LOCKSTEP_HD_INLINE void pool(Value& value, int c, T mean, T m2) const {
            const T delta = mean - value.mean[c];
            value.mean[c] += delta * share;
            value.m2[c] += m2 + delta * delta * product;
        }
    };
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
        const Shares of(value.count[0], T(elements));
        value.count[0] += T(elements);
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
            of.pool(value, c, mean, m2);
        }
    }
};

}  // namespace lockstep::cuda
