// Conversion of convolution weights. A thread moves all taps of as many adjacent channels as one access holds: they are
// adjacent in one order, and in the other the channels of each tap are.
#include "lockstep/ops/cuda/filter.h"

#include "lockstep/ops/cuda/copy.h"
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

namespace {

template <class T, int taps, bool to_last>
struct ConvertFilter {
    static constexpr int width = widest<T>;
    std::int64_t packs;  // per filter
    const T* from;
    T* to;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t filter = quick_quotient(i, packs), channels = packs * width;
        // The taps of the thread's channels, which are adjacent, and its channels of the first tap.
        const std::int64_t by_channels = i * width * taps;
        const std::int64_t by_taps = filter * channels * taps + (i - filter * packs) * width;
        T values[taps][width];
        if constexpr (to_last) {
            T adjacent[taps * width];
            LOCKSTEP_UNROLL
            for (int p = 0; p < taps; ++p) load_part(from + by_channels + p * width, adjacent, p);
            LOCKSTEP_UNROLL
            for (int t = 0; t < taps; ++t) {
                LOCKSTEP_UNROLL
                for (int c = 0; c < width; ++c) values[t][c] = adjacent[c * taps + t];
                store_chunk(values[t], to + by_taps + t * channels);
            }
        } else {
            LOCKSTEP_UNROLL
            for (int t = 0; t < taps; ++t) load_chunk(from + by_taps + t * channels, values[t]);
            LOCKSTEP_UNROLL
            for (int p = 0; p < taps; ++p) {
                T part[width];
                LOCKSTEP_UNROLL
                for (int e = 0; e < width; ++e) {
                    const int at = p * width + e;
                    part[e] = values[at % taps][at / taps];
                }
                store_chunk(part, to + by_channels + p * width);
            }
        }
    }

private:
    static LOCKSTEP_HD_INLINE void load_part(const T* from, T (&adjacent)[taps * width], int p) {
        T part[width];
        load_chunk(from, part);
        LOCKSTEP_UNROLL
        for (int e = 0; e < width; ++e) adjacent[p * width + e] = part[e];
    }
};

template <class T, int taps>
void enqueue(const Queue& queue, const FilterShape& shape, bool to_last, void* to, const void* from) {
    const std::int64_t packs = shape.channels / widest<T>;
    const auto run = [&](const char* name, const auto& convert) {
        launch(queue, name, shape.filters * packs, convert);
    };
    if (to_last)
        run("filter_to_channels_last",
            ConvertFilter<T, taps, true>{packs, static_cast<const T*>(from), static_cast<T*>(to)});
    else
        run("filter_to_rows", ConvertFilter<T, taps, false>{packs, static_cast<const T*>(from), static_cast<T*>(to)});
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

/// As ConvertFilter, back to the order of the arena and to f32.
template <class Stored, int taps>
struct WidenFilter {
    static constexpr int width = widest<Stored>;
    std::int64_t packs;  // per filter
    const Stored* from;
    float* to;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        constexpr int floats = widest<float>;
        const std::int64_t filter = quick_quotient(i, packs), channels = packs * width;
        const std::int64_t by_taps = filter * channels * taps + (i - filter * packs) * width;
        Stored values[taps][width];
        LOCKSTEP_UNROLL
        for (int t = 0; t < taps; ++t) load_chunk(from + by_taps + t * channels, values[t]);
        LOCKSTEP_UNROLL
        for (int p = 0; p < taps * width / floats; ++p) {
            float part[floats];
            LOCKSTEP_UNROLL
            for (int e = 0; e < floats; ++e) {
                const int at = p * floats + e;
                part[e] = upcast(values[at % taps][at / taps]);
            }
            store_chunk(part, to + i * width * taps + p * floats);
        }
    }
};

/// Filters of any size: a thread moves one element.
template <class Stored>
struct WidenElement {
    FilterShape shape;  // with one tap if the order is the same
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
void widen(const Queue& queue, const FilterShape& shape, bool from_last, float* to, const Stored* from) {
    constexpr const char* name = "widen_filter";
    const std::int64_t elements = shape.filters * shape.channels * shape.taps, packs = shape.channels / widest<Stored>;
    const bool fits = elements % widest<Stored> == 0 && is_aligned(to, chunk_bytes) && is_aligned(from, chunk_bytes);
    const auto run = [&](const auto& filter, std::int64_t threads) { launch(queue, name, threads, filter); };
    if (!from_last && fits)
        return run(WidenFilter<Stored, 1>{elements / widest<Stored>, from, to}, elements / widest<Stored>);
    if (!from_last) return run(WidenElement<Stored>{{1, elements, 1}, from, to}, elements);
    const bool in_packs = fits && shape.channels % widest<Stored> == 0;
    if (in_packs && shape.taps == 4) return run(WidenFilter<Stored, 4>{packs, from, to}, shape.filters * packs);
    if (in_packs && shape.taps == 9) return run(WidenFilter<Stored, 9>{packs, from, to}, shape.filters * packs);
    run(WidenElement<Stored>{shape, from, to}, elements);
}

}  // namespace

void widen_filters(const Queue& queue, DType dtype, const FilterShape& shape, bool from_last, float* to,
                   const void* from) {
    if (dtype == DType::f16)
        widen(queue, shape, from_last, to, static_cast<const Half*>(from));
    else
        widen(queue, shape, from_last, to, static_cast<const BFloat16*>(from));
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
