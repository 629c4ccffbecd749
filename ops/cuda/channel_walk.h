// The elements of one channel of a dense tensor.
#pragma once

#include "lockstep/ops/cuda/image_index.h"

namespace lockstep::cuda {

/// A dense tensor (outer, channels, inner). In packs, `inner` counts packs of one channel, or `channels` counts packs
/// of adjacent channels.
struct ChannelLayout {
    std::int64_t outer = 0, channels = 0, inner = 1;

    static ChannelLayout of(const Images& x) {
        if (x.channels_last) return {x.n * x.h * x.w, x.c, 1};
        return {x.n, x.c, x.h * x.w};
    }
    /// Number of elements of a channel.
    LOCKSTEP_HD_INLINE std::int64_t count() const { return outer * inner; }
    LOCKSTEP_HD_INLINE std::int64_t first(std::int64_t channel) const { return channel * inner; }
};

/// Positions of the elements k, k + step, ... of a channel. Divides only at the beginning.
class ChannelWalk {
public:
    LOCKSTEP_HD_INLINE ChannelWalk(const ChannelLayout& layout, std::int64_t channel, std::int64_t k,
                                   std::int64_t step) {
        inner_ = layout.inner;
        const std::int64_t outer = quick_quotient(k, inner_);
        const std::int64_t outer_ahead = step < inner_ ? 0 : quick_quotient(step, inner_);
        offset_ = k - outer * inner_;
        offset_ahead_ = step - outer_ahead * inner_;
        at_ = (outer * layout.channels + channel) * inner_ + offset_;
        ahead_ = outer_ahead * layout.channels * inner_ + offset_ahead_;
        to_next_outer_ = (layout.channels - 1) * inner_;
    }
    /// The position of the current element, which then becomes the next one.
    LOCKSTEP_HD_INLINE std::int64_t next() {
        const std::int64_t here = at_;
        at_ += ahead_;
        offset_ += offset_ahead_;
        if (offset_ >= inner_) {
            offset_ -= inner_;
            at_ += to_next_outer_;
        }
        return here;
    }

private:
    std::int64_t at_, ahead_, to_next_outer_;
    std::int64_t offset_, offset_ahead_, inner_;  // within `inner`
};

}  // namespace lockstep::cuda
