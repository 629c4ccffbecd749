// Dropout. Random numbers are drawn by counters (random.h), so results do not depend on how elements are shared among
// threads.

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/threshold.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/ops/internal/random_operations.h"

namespace lockstep::cuda {

namespace {

/// Masks that are drawn, and saved.
struct DrawnMask {
    std::uint8_t* kept;
    std::uint64_t counter;  // counter of element 0
    const StepCounters* step;
    std::uint32_t ordinal, threshold;

    LOCKSTEP_HD_INLINE StepCounters key() const { return *step; }
    /// Elements from `first` on. Their counters are those of whole blocks.
    template <int width>
    LOCKSTEP_HD_INLINE void take(const StepCounters& key, std::int64_t first, std::uint8_t (&mask)[width]) const {
        LOCKSTEP_UNROLL
        for (int b = 0; b < width / 4; ++b) {
            const auto bits = philox(key, ordinal, ((counter + static_cast<std::uint64_t>(first)) >> 2) + b);
            LOCKSTEP_UNROLL
            for (int k = 0; k < 4; ++k) mask[4 * b + k] = is_below(bits[static_cast<unsigned>(k)], threshold) ? 0 : 1;
        }
        store_chunk(mask, kept + first);
    }
    LOCKSTEP_HD_INLINE std::uint8_t take_one(std::int64_t e) const {
        const std::uint64_t number = counter + static_cast<std::uint64_t>(e);
        const auto bits = philox(*step, ordinal, number >> 2);
        std::uint32_t own = bits[0];  // an index that is not constant would move the block to memory
        LOCKSTEP_UNROLL
        for (unsigned k = 1; k < 4; ++k)
            if ((number & 3) == k) own = bits[k];
        return kept[e] = is_below(own, threshold) ? 0 : 1;
    }
    bool suits_chunks() const { return counter % 4 == 0; }
};
/// Masks that were saved.
struct SavedMask {
    const std::uint8_t* kept;

    struct Key {};
    LOCKSTEP_HD_INLINE Key key() const { return {}; }
    template <int width>
    LOCKSTEP_HD_INLINE void take(Key, std::int64_t first, std::uint8_t (&mask)[width]) const {
        load_chunk(kept + first, mask);
    }
    LOCKSTEP_HD_INLINE std::uint8_t take_one(std::int64_t e) const { return kept[e]; }
    bool suits_chunks() const { return true; }
};

/// y = x * mask; the factor of elements that are kept is `keep`.
template <class Stored, class Mask>
struct Masked {
    using T = UpcastType<Stored>;
    static constexpr int width = sizeof(Stored) == 2 ? 8 : 4, part = chunk_elements(sizeof(Stored));
    Mask mask;
    T keep;
    const Stored* x;
    Stored* y;

    LOCKSTEP_HD_INLINE Stored value(Stored x_value, std::uint8_t kept) const {
        return CastTo<Stored>::from(upcast(x_value) * (kept != 0 ? keep : T(0)));
    }
    LOCKSTEP_HD_INLINE void element(std::int64_t to, std::int64_t from, std::int64_t number) const {
        y[to] = value(x[from], mask.take_one(number));
    }
};

/// Chunks i, i + threads, ... of dense tensors.
template <class Stored, class Mask>
struct MaskedDense {
    Masked<Stored, Mask> masked;
    std::int64_t count, threads;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        constexpr int width = Masked<Stored, Mask>::width, part = Masked<Stored, Mask>::part;
        const auto key = masked.mask.key();  // read once: stores may be to the same memory, for all that nvcc knows
        LOCKSTEP_NO_UNROLL
        for (std::int64_t first = i * width; first < count; first += threads * width) {
            if (first + width > count) {
                LOCKSTEP_NO_UNROLL
                for (std::int64_t e = first; e < count; ++e) masked.element(e, e, e);
                continue;
            }
            Stored values[width / part][part];
            LOCKSTEP_UNROLL
            for (int c = 0; c < width / part; ++c) load_chunk(masked.x + first + c * part, values[c]);
            std::uint8_t kept[width];
            masked.mask.take(key, first, kept);
            LOCKSTEP_UNROLL
            for (int c = 0; c < width / part; ++c) {
                LOCKSTEP_UNROLL
                for (int k = 0; k < part; ++k) values[c][k] = masked.value(values[c][k], kept[c * part + k]);
                store_chunk(values[c], masked.y + first + c * part);
            }
        }
    }
};

template <class Stored, class Mask>
struct MaskedElements {
    Masked<Stored, Mask> masked;
    StridedIndex<3> index;  // y, x, mask

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        masked.element(at.of[0], at.of[1], at.of[2]);
    }
};

/// `plan`: of y, x and the mask, whose offsets are the numbers of elements.
template <class Stored, class Mask>
void enqueue_masked(const Queue& queue, const char* name, const MapPlan<3>& plan, const Masked<Stored, Mask>& masked) {
    const std::int64_t count = plan.elements.count;
    const bool aligned = masked.mask.suits_chunks() && is_aligned(masked.x, chunk_bytes) &&
                         is_aligned(masked.y, chunk_bytes) && is_aligned(masked.mask.kept, masked.width);
    if (!plan.dense || !aligned) return launch(queue, name, count, MaskedElements<Stored, Mask>{masked, plan.elements});
    const std::int64_t threads = dense_threads(count, masked.width);
    launch(queue, name, threads, MaskedDense<Stored, Mask>{masked, count, threads});
}

MapPlan<3> plan_of(const TensorMeta& y, const TensorMeta& x) {
    return make_map<3>(y.shape, {y.strides, x.strides, y.shape.contiguous_strides()}, 1);
}

KernelPtr make_dropout_forward(const DropoutForward& op, KernelRequest& request) {
    set_layout_like(request.out[0], request.in[0]);
    const Shape& shape = request.in[0].shape;
    const std::int64_t count = shape.numel();
    const std::int64_t row_size = count > 0 && shape.dims() > 0 ? count / shape[0] : 0;
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const MapPlan<3> plan = plan_of(request.out[0], request.in[0]);
        return make_cuda_kernel(request, [plan, row_size, op](const Queue& queue, const KernelArgs& v) {
            const std::uint64_t counter = element::first_draw(op.by, v.first_row, row_size, v.shard);
            const DrawnMask mask{v.output<std::uint8_t>(1), counter, v.step, v.ordinal, threshold_of(op.p)};
            enqueue_masked(queue, op.name, plan,
                           Masked<Stored, DrawnMask>{mask, element::dropout_factor<T>(op.p), v.input<Stored>(0),
                                                     v.output<Stored>(0)});
        });
    });
}

KernelPtr make_dropout_backward(const DropoutBackward& op, KernelRequest& request) {
    request.want_contiguous(1);
    set_layout_like(request.out[0], request.in[0]);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const MapPlan<3> plan = plan_of(request.out[0], request.in[0]);
        return make_cuda_kernel(request, [plan, op](const Queue& queue, const KernelArgs& v) {
            enqueue_masked(queue, op.name, plan,
                           Masked<Stored, SavedMask>{{v.input<std::uint8_t>(1)},
                                                     element::dropout_factor<T>(op.p),
                                                     v.input<Stored>(0),
                                                     v.output<Stored>(0)});
        });
    });
}

}  // namespace

void add_dropout_kernels(KernelTable& table) {
    table.add<DropoutForward, make_dropout_forward>();
    table.add<DropoutBackward, make_dropout_backward>();
    table.add_half_types<DropoutForward, make_dropout_forward>();
    table.add_half_types<DropoutBackward, make_dropout_backward>();
}

}  // namespace lockstep::cuda
