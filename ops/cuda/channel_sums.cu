// Sums over everything but the channels.
#include "lockstep/ops/cuda/channel_sums.h"

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

namespace {

template <class T>
struct SumChannels {
    static constexpr int resident_blocks = 4;
    using Value = SumOf<UpcastType<T>>;
    ChannelLayout layout;
    const T* x;
    T* sums;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& sum, std::int64_t channel, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        if (first >= end) return;
        ChannelWalk walk(layout, channel, first, step);
        LOCKSTEP_UNROLL_4
        for (std::int64_t k = first; k < end; k += step) sum.add(upcast(x[walk.next()]));
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum.add(other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t channel, const Value& sum) const {
        sums[channel] = CastTo<T>::from(sum.value());
    }
};

}  // namespace

ReducePlan channels_plan(const ChannelLayout& layout) {
    return ReducePlan::make(layout.channels, layout.count(), layout.inner == 1);
}

std::size_t channel_sums_scratch(const ChannelLayout& layout) {
    return channels_plan(layout).scratch_bytes<SumChannels<double>>();
}

void channel_sums(const Queue& queue, DType dtype, const ChannelLayout& layout, const void* x, void* sums,
                  void* scratch) {
    visit_any_float("channel_sums", dtype, [&](auto zero) {
        using T = decltype(zero);
        reduce(queue, "channel_sums", channels_plan(layout),
               SumChannels<T>{layout, static_cast<const T*>(x), static_cast<T*>(sums)}, scratch);
    });
}

}  // namespace lockstep::cuda
