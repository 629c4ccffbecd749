// The rows of a shard among those of the whole batch.
#include "lockstep/ops/internal/shard_rows.h"

#include <cstdint>

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"

namespace lockstep::cuda {

namespace {

/// Elements of any dtype, as words of their size.
template <class Word>
struct PlaceRows {
    Word* to;
    const Word* from;
    std::int64_t begin, count;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t own = i - begin;
        to[i] = own >= 0 && own < count ? from[own] : Word{};
    }
};

template <class Word>
struct TakeRows {
    Word* to;
    const Word* from;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const { to[i] = from[i]; }
};

template <class Make>
KernelPtr by_word(DType dtype, const Make& make) {
    switch (size_of(dtype)) {
        case 2: return make(std::uint16_t{});
        case 4: return make(std::uint32_t{});
        default: return make(std::uint64_t{});
    }
}

std::int64_t elements_of_row(const Shape& shape) { return shape[0] > 0 ? shape.numel() / shape[0] : 0; }

KernelPtr make_place_shard_rows(const PlaceShardRows& op, KernelRequest& request) {
    request.want_contiguous(0);
    return by_word(request.out[0].dtype, [&](auto zero) {
        using Word = decltype(zero);
        return make_cuda_kernel(request, [name = op.name, count = request.in[0].shape.numel(),
                                          all = request.out[0].shape.numel(),
                                          row = elements_of_row(request.out[0].shape)](const Queue& queue,
                                                                                       const KernelArgs& v) {
            launch(queue, name, all, PlaceRows<Word>{v.output<Word>(0), v.input<Word>(0), row * v.first_row, count});
        });
    });
}

KernelPtr make_take_shard_rows(const TakeShardRows& op, KernelRequest& request) {
    request.want_contiguous(0);
    return by_word(request.out[0].dtype, [&](auto zero) {
        using Word = decltype(zero);
        return make_cuda_kernel(
            request, [name = op.name, count = request.out[0].shape.numel(), row = elements_of_row(request.in[0].shape)](
                         const Queue& queue, const KernelArgs& v) {
                launch(queue, name, count, TakeRows<Word>{v.output<Word>(0), v.input<Word>(0) + row * v.first_row});
            });
    });
}

}  // namespace

void add_shard_row_kernels(KernelTable& table) {
    table.add<PlaceShardRows, make_place_shard_rows>();
    table.add<TakeShardRows, make_take_shard_rows>();
    table.add_half_types<PlaceShardRows, make_place_shard_rows>();
    table.add_half_types<TakeShardRows, make_take_shard_rows>();
}

}  // namespace lockstep::cuda
