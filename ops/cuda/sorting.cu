// ArgSort: a bitonic network over lines that are padded to a power of two. All pairs of a key and a place differ, so
// the order is the only one that is right.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/internal/order_keys.h"
#include "lockstep/ops/internal/sorting_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// Keys and places of all lines in scratch memory, one line after the other.
template <class T>
struct SortedLines {
    using Key = element::OrderKey<T>;
    std::int64_t size, inner, width;
    bool descending;
    Key* keys;
    std::int32_t* places;

    LOCKSTEP_HD_INLINE std::int64_t first(std::int64_t line) const {
        return line / inner * inner * size + line % inner;
    }
};

template <class T>
struct LoadKeys {
    SortedLines<T> all;
    const T* x;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        using Key = typename SortedLines<T>::Key;
        const std::int64_t line = i / all.width, place = i % all.width;
        all.keys[i] = place < all.size ? element::order_key(x[all.first(line) + place * all.inner], all.descending)
                                       : static_cast<Key>(-1);
        all.places[i] = static_cast<std::int32_t>(place);
    }
};

/// Exchanges of elements whose places differ in `bit`, in blocks of `block` elements with alternating order.
template <class T>
struct ExchangePairs {
    SortedLines<T> all;
    std::int64_t block, bit;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t pair) const {
        const std::int64_t a = pair / bit * 2 * bit + pair % bit, b = a + bit;
        const auto key_a = all.keys[a], key_b = all.keys[b];
        const std::int32_t place_a = all.places[a], place_b = all.places[b];
        const bool in_order = key_a < key_b || (key_a == key_b && place_a < place_b);
        if (in_order == ((a % all.width & block) == 0)) return;
        all.keys[a] = key_b;
        all.keys[b] = key_a;
        all.places[a] = place_b;
        all.places[b] = place_a;
    }
};

template <class T>
struct StorePlaces {
    SortedLines<T> all;
    std::int64_t* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t line = i / all.size, place = i % all.size;
        y[all.first(line) + place * all.inner] = all.places[line * all.width + place];
    }
};

/// ArgSort, or ArgTop, for which all positions are written.
template <class Op>
KernelPtr make_argsort(const Op& op, KernelRequest& request) {
    request.want_contiguous(0);
    const Shape& shape = request.in[0].shape;
    std::int64_t inner = 1;
    for (int i = op.dim + 1; i < shape.dims(); ++i) inner *= shape[i];
    const std::int64_t size = shape[op.dim], lines = size == 0 ? 0 : shape.numel() / size;
    std::int64_t width = 1;
    while (width < size) width *= 2;
    require_at_most(op.name, "elements of a line", static_cast<std::size_t>(size), std::size_t{1} << 30);
    return visit_float_or_i64(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const std::size_t entries = static_cast<std::size_t>(lines * width);
        const std::size_t key_bytes = round_up(entries * sizeof(element::OrderKey<T>), scratch_alignment);
        return make_cuda_kernel(
            request,
            [=, descending = op.descending](const Queue& queue, const KernelArgs& v) {
                auto* const bytes = static_cast<char*>(v.scratch);
                const SortedLines<T> all{size,
                                         inner,
                                         width,
                                         descending,
                                         reinterpret_cast<element::OrderKey<T>*>(bytes),
                                         reinterpret_cast<std::int32_t*>(bytes + key_bytes)};
                launch(queue, "argsort_load", lines * width, LoadKeys<T>{all, v.input<T>(0)});
                for (std::int64_t block = 2; block <= width; block *= 2)
                    for (std::int64_t bit = block / 2; bit > 0; bit /= 2)
                        launch(queue, "argsort_exchange", lines * width / 2,
                               ExchangePairs<T>{all, block < width ? block : 0, bit});
                launch(queue, "argsort_store", lines * size, StorePlaces<T>{all, v.output<std::int64_t>(0)});
            },
            key_bytes + entries * sizeof(std::int32_t));
    });
}

}  // namespace

void add_sorting_kernels(KernelTable& table) {
    table.add<ArgSort, make_argsort<ArgSort>>();
    table.add<ArgTop, make_argsort<ArgTop>>();
}

}  // namespace lockstep::cuda
