// Pixels of images, in either of the two layouts that kernels support, shared among threads so that each divides once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

/// a / b for a >= 0 and b > 0; several times faster if both have 32 bits.
LOCKSTEP_HD_INLINE std::int64_t quick_quotient(std::int64_t a, std::int64_t b) {
    if (b == 1) return a;
    if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
}

/// The pixels of images, in packs of adjacent channels if channels are last. A thread takes the same pixel (and pack)
/// of several slices: of images, or of planes if channels are first.
struct PixelWalk {
    std::int64_t slices = 0, slices_ahead = 1;
    std::int64_t columns = 1;           // pixels of a slice times packs of a pixel
    std::int64_t packs = 1, width = 1;  // packs of a pixel, elements of a pack
    std::int64_t w = 1;
    std::int64_t pixel = 1;  // elements from a pixel to the next

    /// `h` and `w`: pixels to be walked over, which need not be those of `images`.
    PixelWalk(const Images& images, std::int64_t walked_h, std::int64_t walked_w, int pack_width)
        : slices(images.channels_last ? images.n : images.n * images.c),
          width(pack_width),
          w(walked_w),
          pixel(images.channels_last ? images.c : 1) {
        if (images.channels_last) packs = images.c / width;
        columns = walked_h * walked_w * packs;
        if (columns > 0 && slices > 0) slices_ahead = std::clamp<std::int64_t>(enough_threads / columns, 1, slices);
    }
    std::int64_t threads() const { return slices > 0 ? columns * slices_ahead : 0; }

    struct Place {
        std::int64_t slice, h, w, channel;
    };
    /// First pixel of a thread.
    LOCKSTEP_HD_INLINE Place place(std::int64_t thread) const {
        const std::int64_t slice = quick_quotient(thread, columns);
        const std::int64_t column = thread - slice * columns;
        const std::int64_t number = quick_quotient(column, packs);
        const std::int64_t row = quick_quotient(number, w);
        return {slice, row, number - row * w, (column - number * packs) * width};
    }
};

/// Calls run(std::integral_constant<int, width>) with the widest packs of channels into which pixels can be cut.
/// `aligned`: whether all addresses suit them.
template <class Stored, class Run>
void with_channel_packs(const Images& images, bool aligned, const Run& run) {
    constexpr int wide = widest<Stored>;
    if (aligned && images.channels_last && images.c % wide == 0)
        run(std::integral_constant<int, wide>());
    else
        run(std::integral_constant<int, 1>());
}

}  // namespace lockstep::cuda
