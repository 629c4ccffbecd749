// Conversion of convolution weights. A thread moves all taps of as many adjacent channels as one access holds: they are
// adjacent in one order, and in the other the channels of each tap are.
#include "lockstep/ops/cuda/filter.h"

#include <type_traits>

#include "lockstep/ops/cuda/copy.h"
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

namespace {

/// In cuDNN's order, the first element of the channels of thread `i`.
template <int width, int taps>
LOCKSTEP_HD_INLINE std::int64_t first_by_taps(std::int64_t i, std::int64_t packs) {
    const std::int64_t filter = quick_quotient(i, packs);
    return (filter * packs * taps + (i - filter * packs)) * width;
}

template <class T, int taps>
struct FilterToLast {
    static constexpr int width = widest<T>;
    std::int64_t packs;  // per filter
    const T* from;
    T* to;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        T adjacent[taps * width];
        LOCKSTEP_UNROLL
        for (int p = 0; p < taps; ++p) {
            T part[width];
            load_chunk(from + (i * taps + p) * width, part);
            LOCKSTEP_UNROLL
            for (int e = 0; e < width; ++e) adjacent[p * width + e] = part[e];
        }
        LOCKSTEP_UNROLL
        for (int t = 0; t < taps; ++t) {
            T values[width];
            LOCKSTEP_UNROLL
            for (int c = 0; c < width; ++c) values[c] = adjacent[c * taps + t];
            store_chunk(values, to + first_by_taps<width, taps>(i, packs) + t * packs * width);
        }
    }
};

/// Back to the order of the arena, and from 16 bits to f32 if To is float.
template <class From, class To, int taps>
struct FilterToRows {
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
                if constexpr (std::is_same_v<From, To>)
                    part[e] = values[at % taps][at / taps];
                else
                    part[e] = upcast(values[at % taps][at / taps]);
            }
            store_chunk(part, to + i * taps * width + p * part_width);
        }
    }
};

template <class T, int taps>
void enqueue(const Queue& queue, const FilterShape& shape, bool to_last, void* to, const void* from) {
    const std::int64_t packs = shape.channels / widest<T>;
    const auto run = [&](const char* name, const auto& convert) {
        launch(queue, name, shape.filters * packs, convert);
    };
    if (to_last)
        run("filter_to_channels_last", FilterToLast<T, taps>{packs, static_cast<const T*>(from), static_cast<T*>(to)});
    else
        run("filter_to_rows", FilterToRows<T, T, taps>{packs, static_cast<const T*>(from), static_cast<T*>(to)});
}

/// Whether there is a kernel for the shape, which it then enqueues. T: an unsigned integer of the size of the elements.
template <class T>
bool converts(const Queue& queue, const FilterShape& shape, bool to_last, void* to, const void* from) {
    if (shape.channels % widest<T> != 0 || !is_aligned(to, chunk_bytes) || !is_aligned(from, chunk_bytes)) return false;
    switch (shape.taps) {
        case 4: enqueue<T, 4>(queue, shape, to_last, to, from); return true;
        case 9: enqueue<T, 9>(queue, shape, to_last, to, from); return true;
        default: return false;
    }
}

/// Filters of any size: a thread moves one element.
template <class Stored>
struct WidenElement {
    FilterShape shape;
    const Stored* from;
    float* to;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t channel_of_all = quick_quotient(i, shape.taps), tap = i - channel_of_all * shape.taps;
        const std::int64_t filter = quick_quotient(channel_of_all, shape.channels);
        const std::int64_t channel = channel_of_all - filter * shape.channels;
        to[i] = upcast(from[(filter * shape.taps + tap) * shape.channels + channel]);
    }
};

template <class Stored>
void widen(const Queue& queue, const FilterShape& shape, float* to, const Stored* from) {
    constexpr int width = widest<Stored>;
    const std::int64_t packs = shape.channels / width;
    const auto run = [&](const auto& filter, std::int64_t threads) { launch(queue, "widen_filter", threads, filter); };
    if (shape.channels % width == 0 && is_aligned(to, chunk_bytes) && is_aligned(from, chunk_bytes)) {
        const std::int64_t threads = shape.filters * packs;
        if (shape.taps == 1) return run(FilterToRows<Stored, float, 1>{packs, from, to}, threads);
        if (shape.taps == 4) return run(FilterToRows<Stored, float, 4>{packs, from, to}, threads);
        if (shape.taps == 9) return run(FilterToRows<Stored, float, 9>{packs, from, to}, threads);
    }
    run(WidenElement<Stored>{shape, from, to}, shape.filters * shape.channels * shape.taps);
}

}  // namespace

void widen_filters(const Queue& queue, DType dtype, const FilterShape& given, bool from_last, float* to,
                   const void* from) {
    // In equal orders, all elements are the channels of one filter with one tap.
    const FilterShape shape = from_last ? given : FilterShape{1, given.filters * given.channels * given.taps, 1};
    if (dtype == DType::f16)
        widen(queue, shape, to, static_cast<const Half*>(from));
    else
        widen(queue, shape, to, static_cast<const BFloat16*>(from));
}

void convert_filters(const Queue& queue, DType dtype, const FilterShape& shape, bool to_last, void* to,
                     const void* from) {
    if (size_of(dtype) == 4 ? converts<std::uint32_t>(queue, shape, to_last, to, from)
                            : converts<std::uint16_t>(queue, shape, to_last, to, from))
        return;
    const Shape sizes{shape.filters, shape.channels, shape.taps};
    const Shape last{shape.channels * shape.taps, 1, shape.channels}, rows = sizes.contiguous_strides();
    copy_strided(queue, to_last ? "filter_to_channels_last" : "filter_to_rows", dtype, sizes, to, to_last ? last : rows,
                 from, to_last ? rows : last);
}

}  // namespace lockstep::cuda
