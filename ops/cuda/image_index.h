// Pixels of images, in either of the two layouts that kernels support, shared among threads so that each divides once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cuda/index.h"
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

/// How many slices a thread takes.
enum class Slices : std::uint8_t {
    several,  ///< as few threads as are enough; a thread computes the addresses of its pixel once
    one       ///< for threads that access many bytes
};

/// The pixels of images (or tiles of them), in packs of adjacent channels if channels are last. A thread takes the same
/// pixel (and pack) of one or several slices: of images, or of planes if channels are first.
struct PixelWalk {
    std::int64_t slices = 0, slices_ahead = 1;
    std::int64_t h = 1, w = 1;
    std::int64_t packs = 1, width = 1;  // packs of a pixel, elements of a pack
    std::int64_t pixel = 1;             // elements from a pixel to the next
    bool narrow = true;                 // numbers of threads are below 2^31
    Divisor by_h, by_w, by_packs;

    /// `walked_h` and `walked_w`: pixels to be walked over, which need not be those of `images`.
    PixelWalk(const Images& images, std::int64_t walked_h, std::int64_t walked_w, int pack_width,
              Slices taken = Slices::several)
        : slices(images.channels_last ? images.n : images.n * images.c),
          h(walked_h),
          w(walked_w),
          width(pack_width),
          pixel(images.channels_last ? images.c : 1) {
        if (images.channels_last) packs = images.c / width;
        const std::int64_t columns = h * w * packs;
        if (columns == 0 || slices == 0) return;
        slices_ahead = taken == Slices::one ? slices : std::clamp<std::int64_t>(enough_threads / columns, 1, slices);
        narrow = threads() < std::int64_t{1} << 31;
        if (!narrow) return;
        by_h = Divisor(static_cast<std::uint32_t>(h));
        by_w = Divisor(static_cast<std::uint32_t>(w));
        by_packs = Divisor(static_cast<std::uint32_t>(packs));
    }
    std::int64_t threads() const { return slices > 0 ? h * w * packs * slices_ahead : 0; }

    struct Place {
        std::int64_t slice, h, w, channel;
    };
    /// First pixel of a thread.
    LOCKSTEP_HD_INLINE Place place(std::int64_t thread) const {
        if (!narrow) {
            const std::int64_t number = thread / packs, row = number / w;
            return {row / h, row % h, number % w, thread % packs * width};
        }
        const auto n = static_cast<std::uint32_t>(thread);
        const std::uint32_t number = by_packs.quotient(n), row = by_w.quotient(number), slice = by_h.quotient(row);
        return {slice, row - slice * static_cast<std::uint32_t>(h), number - row * static_cast<std::uint32_t>(w),
                (n - number * static_cast<std::uint32_t>(packs)) * static_cast<std::uint32_t>(width)};
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
