// Conversion of convolution weights.
#include "lockstep/ops/cuda/filter.h"

#include "lockstep/ops/cuda/copy.h"
#include "lockstep/ops/cuda/filter_order.h"

namespace lockstep::cuda {

namespace {

template <class T, int taps>
void enqueue(const Queue& queue, const FilterShape& shape, bool to_last, void* to, const void* from) {
    const std::int64_t packs = shape.channels / widest<T>;
    const auto run = [&](const char* name, const auto& convert) {
        launch(queue, name, shape.filters * packs, convert);
    };
    if (to_last)
        run("filter_to_channels_last",
            FilterToLast<T, T, taps>{packs, static_cast<const T*>(from), static_cast<T*>(to)});
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
