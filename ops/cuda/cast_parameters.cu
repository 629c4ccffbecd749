// Copies of parameters in another dtype or order of memory. One launch serves many parameters, as most networks have
// more small ones than large ones.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "lockstep/ops/cuda/filter.h"
#include "lockstep/ops/cuda/filter_order.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

/// A parameter, or several that are adjacent.
struct Piece {
    const void* from;
    void* to;
    std::int64_t end;       ///< threads of the launch's pieces up to this one
    std::int64_t elements;  ///< number of elements
    int channels;           ///< channels per filter, if the order changes
    int taps;               ///< taps of the filter; 1: the order does not change
    bool by_packs;          ///< whether a thread moves all taps of several channels of the filter
    bool from_last;         ///< whether the order is cuDNN's and becomes that of the arena, or the other way round
};

// The arguments of a launch must fit into 4 KB.
constexpr int max_pieces = 80;

template <class From, class To>
struct CastPieces {
    static constexpr int width = widest<To>;
    int count = 0;
    Piece pieces[max_pieces];

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        int low = 0, high = count - 1;  // the first piece that ends behind the thread
        while (low < high) {
            const int middle = (low + high) / 2;
            if (thread < pieces[middle].end)
                high = middle;
            else
                low = middle + 1;
        }
        const Piece& piece = pieces[low];
        const std::int64_t i = low == 0 ? thread : thread - pieces[low - 1].end;
        if (piece.taps == 1)
            cast_elements(piece, i);
        else if (!piece.by_packs)
            cast_element(piece, i);
        else if (piece.taps == 4)
            cast_packs<4>(piece, i);
        else
            cast_packs<9>(piece, i);
    }

private:
    LOCKSTEP_HD_INLINE void cast_elements(const Piece& piece, std::int64_t i) const {
        const From* const from = static_cast<const From*>(piece.from) + i * width;
        To* const to = static_cast<To*>(piece.to) + i * width;
        const std::int64_t rest = piece.elements - i * width;
        if (rest < width) {
            LOCKSTEP_NO_UNROLL
            for (std::int64_t e = 0; e < rest; ++e) to[e] = converted<To>(from[e]);
            return;
        }
        constexpr int part_width = std::min(width, widest<From>);
        To values[width];
        LOCKSTEP_UNROLL
        for (int p = 0; p < width / part_width; ++p) {
            From part[part_width];
            load_chunk(from + p * part_width, part);
            LOCKSTEP_UNROLL
            for (int e = 0; e < part_width; ++e) values[p * part_width + e] = converted<To>(part[e]);
        }
        store_chunk(values, to);
    }
    /// Element `i` of the result.
    LOCKSTEP_HD_INLINE void cast_element(const Piece& piece, std::int64_t i) const {
        if (piece.from_last) return cast_element_to_rows(piece, i);
        const std::int64_t tap_of_all = quick_quotient(i, piece.channels), channel = i - tap_of_all * piece.channels;
        const std::int64_t filter = quick_quotient(tap_of_all, piece.taps), tap = tap_of_all - filter * piece.taps;
        const From value = static_cast<const From*>(piece.from)[(filter * piece.channels + channel) * piece.taps + tap];
        static_cast<To*>(piece.to)[i] = converted<To>(value);
    }
    LOCKSTEP_HD_INLINE void cast_element_to_rows(const Piece& piece, std::int64_t i) const {
        const std::int64_t channel_of_all = quick_quotient(i, piece.taps), tap = i - channel_of_all * piece.taps;
        const std::int64_t filter = quick_quotient(channel_of_all, piece.channels);
        const std::int64_t channel = channel_of_all - filter * piece.channels;
        const From value = static_cast<const From*>(piece.from)[(filter * piece.taps + tap) * piece.channels + channel];
        static_cast<To*>(piece.to)[i] = converted<To>(value);
    }
    template <int taps>
    LOCKSTEP_HD_INLINE void cast_packs(const Piece& piece, std::int64_t i) const {
        // Only gradients are converted from cuDNN's order, from 16 bits to 32.
        if constexpr (sizeof(From) < sizeof(To)) {
            const FilterToRows<From, To, taps> filter{piece.channels / widest<From>,
                                                      static_cast<const From*>(piece.from), static_cast<To*>(piece.to)};
            filter(i);
        } else {
            const FilterToLast<From, To, taps> filter{piece.channels / width, static_cast<const From*>(piece.from),
                                                      static_cast<To*>(piece.to)};
            filter(i);
        }
    }
};

/// A piece without addresses; `end`: number of its threads.
Piece piece_of(const TensorMeta& from, const TensorMeta& to) {
    const bool from_last = !from.is_contiguous();
    const auto width = static_cast<std::int64_t>(chunk_elements(size_of(from_last ? from.dtype : to.dtype)));
    const std::int64_t elements = to.numel();
    if (to.is_contiguous() && !from_last)
        return {nullptr, nullptr, ceil_div(elements, width), elements, 1, 1, false, false};
    const FilterShape filter = FilterShape::of(to.shape);
    const bool by_packs = filter.channels % width == 0 && (filter.taps == 4 || filter.taps == 9);
    const std::int64_t threads = by_packs ? filter.filters * filter.channels / width : elements;
    return {nullptr,  nullptr,  threads, elements, static_cast<int>(filter.channels), static_cast<int>(filter.taps),
            by_packs, from_last};
}

template <class From, class To>
KernelPtr make_casts(const KernelRequest& request) {
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < request.out.size(); ++i) pieces.push_back(piece_of(request.in[i], request.out[i]));
    return make_cuda_kernel(request, [pieces](const Queue& queue, const KernelArgs& v) {
        for (std::size_t first = 0; first < pieces.size(); first += max_pieces) {
            CastPieces<From, To> all{};
            std::int64_t threads = 0;
            for (std::size_t i = first; i < std::min(first + max_pieces, pieces.size()); ++i) {
                Piece& piece = all.pieces[all.count++];
                piece = pieces[i];
                piece.from = v.in[i];
                piece.to = v.out[i];
                threads += piece.end;
                piece.end = threads;
            }
            launch(queue, "cast_parameters", threads, all);
        }
    });
}

KernelPtr make_cast_parameters(const CastParameters& op, KernelRequest& request) {
    const bool widens = is_half_type(request.in[0].dtype);
    for (std::size_t i = 0; i < request.in.size(); ++i) {
        TensorMeta& to = request.out[i];
        if (!widens || !is_channels_last(request.in[i])) request.want_contiguous(i);
        if (!to.is_contiguous() && (widens || !is_channels_last(to))) to.strides = to.shape.contiguous_strides();
    }
    if (widens && request.out[0].dtype == DType::f32)
        return request.in[0].dtype == DType::f16 ? make_casts<Half, float>(request)
                                                 : make_casts<BFloat16, float>(request);
    return visit_float(op.name, request.in[0].dtype, [&](auto from) -> KernelPtr {
        using From = decltype(from);
        switch (const DType to = request.out[0].dtype; to) {
            case DType::f16: return make_casts<From, Half>(request);
            case DType::bf16: return make_casts<From, BFloat16>(request);
            case DType::f32: return make_casts<From, float>(request);
            default: refuse_dtype(op.name, to);
        }
    });
}

}  // namespace

void add_parameter_kernels(KernelTable& table) {
    table.add<CastParameters, make_cast_parameters>();
    table.add_half_types<CastParameters, make_cast_parameters>();
}

}  // namespace lockstep::cuda
