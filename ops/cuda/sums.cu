// Sums over everything but the channels.
#include "lockstep/ops/cuda/sums.h"

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/scalars.h"

namespace lockstep::cuda {

namespace {

template <class T>
struct SumChannels {
    using Value = double;
    ChannelLayout layout;
    const T* x;
    T* sums;

    LOCKSTEP_ELEMENT Value zero() const { return 0; }
    LOCKSTEP_ELEMENT void add(Value& sum, std::int64_t channel, std::int64_t k) const {
        const std::int64_t at = (k / layout.inner * layout.channels + channel) * layout.inner + k % layout.inner;
        sum += static_cast<double>(widen(x[at]));
    }
    LOCKSTEP_ELEMENT void join(Value& sum, const Value& other) const { sum += other; }
    LOCKSTEP_ELEMENT void finish(std::int64_t channel, const Value& sum) const { sums[channel] = Narrow<T>::from(sum); }
};

ReducePlan plan_of(const ChannelLayout& layout) {
    return ReducePlan::make(layout.channels, layout.outer * layout.inner, layout.inner == 1);
}

}  // namespace

std::size_t channel_sums_scratch(const ChannelLayout& layout) {
    return plan_of(layout).scratch_bytes<SumChannels<double>>();
}

void channel_sums(const Queue& queue, DType dtype, const ChannelLayout& layout, const void* x, void* sums,
                  void* scratch) {
    visit_any_float("channel_sums", dtype, [&](auto zero) {
        using T = decltype(zero);
        reduce(queue, "channel_sums", plan_of(layout),
               SumChannels<T>{layout, static_cast<const T*>(x), static_cast<T*>(sums)}, scratch);
    });
}

}  // namespace lockstep::cuda
