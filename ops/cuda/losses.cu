// Negative log-likelihood, and whether a loss is finite.
#include "lockstep/ops/cuda/batch.h"
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/report.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/nn_operations.h"

namespace lockstep::cuda {

namespace {

struct NllSums {
    double numerator, weight;
    std::int64_t bad_row;  // first position whose target is not a class; -1: none
};

template <class T>
struct NllRows {
    using Plans = NoColumns;
    static constexpr int at_once = 8;  // rows whose loads are in flight
    using Value = NllSums;
    const T* log_probabilities;  // or null if only the weight is requested
    StridedIndex<2> positions;   // log_probabilities of the first class, target
    std::int64_t class_stride, classes, inner;
    const std::int64_t* target;
    const T* weights;  // or null
    std::int64_t weight_stride;
    std::int64_t ignore_index;
    T* numerator;
    T* weight;
    StatusWord* status;
    const StepCounters* step;
    int shard;
    std::int64_t first_row;

    LOCKSTEP_HD_INLINE Value zero() const { return {0, 0, -1}; }
    /// Targets are loaded first, then what depends on them: no load of a batch waits for another one of its kind.
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        LOCKSTEP_NO_UNROLL
        for (std::int64_t k = first; k < end; k += at_once * step) {
            std::int64_t from[at_once], targets[at_once];
            T probabilities[at_once];
            LOCKSTEP_UNROLL
            for (int i = 0; i < at_once; ++i) {
                from[i] = 0;
                targets[i] = ignore_index;
                if (k + i * step >= end) continue;
                const auto at = positions(k + i * step);
                from[i] = at.of[0];
                targets[i] = target[at.of[1]];
            }
            LOCKSTEP_UNROLL
            for (int i = 0; i < at_once; ++i) {
                probabilities[i] = T();
                if (log_probabilities != nullptr && is_class(targets[i]))
                    probabilities[i] = log_probabilities[from[i] + targets[i] * class_stride];
            }
            LOCKSTEP_UNROLL
            for (int i = 0; i < at_once; ++i) add_row(value, k + i * step, targets[i], probabilities[i]);
        }
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        value.numerator += other.numerator;
        value.weight += other.weight;
        if (other.bad_row >= 0 && (value.bad_row < 0 || other.bad_row < value.bad_row)) value.bad_row = other.bad_row;
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& value) const {
        *numerator = CastTo<T>::from(value.numerator);
        *weight = CastTo<T>::from(value.weight);
        if (value.bad_row >= 0)
            report(status, StatusCode::target_out_of_range, shard, step, first_row + value.bad_row / inner,
                   target[positions(value.bad_row).of[1]]);
    }

private:
    LOCKSTEP_HD_INLINE bool is_class(std::int64_t t) const { return t >= 0 && t < classes && t != ignore_index; }
    LOCKSTEP_HD_INLINE void add_row(Value& value, std::int64_t row, std::int64_t t, T probability) const {
        if (is_class(t)) {
            const double w = weights != nullptr ? static_cast<double>(upcast(weights[t * weight_stride])) : 1.0;
            value.numerator -= w * static_cast<double>(upcast(probability));
            value.weight += w;
        } else if (t != ignore_index && (value.bad_row < 0 || row < value.bad_row)) {
            value.bad_row = row;
        }
    }
};

/// Gradients of targets. The only element of a position that is not zero is that of its class.
template <class Stored>
struct NllGradient {
    using T = UpcastType<Stored>;
    StridedIndex<1> targets;
    Stored* d;  // (N, C, ...) row-major
    const Stored* gradient;
    const std::int64_t* target;
    const Stored* weights;
    std::int64_t weight_stride;
    std::int64_t ignore_index, classes, inner;

    LOCKSTEP_HD_INLINE std::int64_t target_of(std::int64_t position) const { return target[targets(position).of[0]]; }
    LOCKSTEP_HD_INLINE Stored value(std::int64_t t) const {
        const T from = upcast(*gradient);
        return CastTo<Stored>::from(weights != nullptr ? -from * upcast(weights[t * weight_stride]) : -from);
    }
    LOCKSTEP_HD_INLINE bool counts(std::int64_t t) const { return t >= 0 && t < classes && t != ignore_index; }
};

/// One thread per pack of adjacent positions: adjacent threads write adjacent packs of each class. `width`: at most 2,
/// the targets of one access.
template <class Stored, int width>
struct NllBackwardPositions {
    NllGradient<Stored> of;
    bool adjacent;  // targets are adjacent in memory, and aligned

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        std::int64_t t[width];
        if (adjacent) {
            load_chunk(of.target + i * width, t);
        } else {
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j) t[j] = of.target_of(i * width + j);
        }
        Stored values[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            if (!of.counts(t[j])) t[j] = -1;
            values[j] = t[j] >= 0 ? of.value(t[j]) : Stored();
        }
        const std::int64_t row = quick_quotient(i * width, of.inner);
        Stored* to = of.d + row * of.classes * of.inner + (i * width - row * of.inner);
        for (std::int64_t c = 0; c < of.classes; ++c, to += of.inner) {
            Pack<Stored, width> pack;
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j) pack.of[j] = t[j] == c ? values[j] : Stored();
            store_pack(to, pack);
        }
    }
};

/// For inner == 1: packs of adjacent classes of a row, whose targets are loaded several at once.
template <class Stored, int width>
struct NllBackwardRows {
    static constexpr int at_once = 4;
    NllGradient<Stored> of;
    std::int64_t packs_of_row, packs, threads;

    NllBackwardRows(const NllGradient<Stored>& gradient, std::int64_t rows)
        : of(gradient),
          packs_of_row(gradient.classes / width),
          packs(rows * packs_of_row),
          threads(std::min(packs, enough_threads)) {}

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        for_loaded<at_once>(
            thread, packs, threads,
            [&](std::int64_t pack) {
                const std::int64_t row = quick_quotient(pack, packs_of_row);
                const std::int64_t first = (pack - row * packs_of_row) * width, t = of.target_of(row);
                const bool here = t >= first && t < first + width && t != of.ignore_index;
                return here ? t - first : std::int64_t{-1};  // place of its class in the pack
            },
            [&](std::int64_t place, std::int64_t pack) {
                Pack<Stored, width> values = {};
                if (place >= 0) {
                    const std::int64_t t = pack % packs_of_row * width + place;
                    const Stored value = of.value(t);
                    LOCKSTEP_UNROLL
                    for (int j = 0; j < width; ++j)
                        if (j == place) values.of[j] = value;
                }
                store_pack(of.d + pack * width, values);
            });
    }
};

template <class T>
struct CheckFiniteElement {
    const T* x;
    T* y;
    StatusWord* status;
    const StepCounters* step;
    int shard;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const {
        const T value = *x;
        if (value - value != T(0)) report(status, StatusCode::loss_not_finite, shard, step, 0, 0);
        *y = value;
    }
};

std::int64_t positions_in_row(const Shape& target) {
    std::int64_t count = 1;
    for (int d = 1; d < target.dims(); ++d) count *= target[d];
    return count;
}

KernelPtr make_nll_forward(const NllForward& op, KernelRequest& request) {
    const TensorMeta& x = request.in[0];
    const ReducePlan plan = ReducePlan::make(1, request.in[1].numel(), false);
    Shape of_one_class = x.strides;
    of_one_class.erase(1);
    const Shape strides[] = {of_one_class, request.in[1].strides};
    return visit_any_float(op.name, x.dtype, [&](auto zero) {
        using T = decltype(zero);
        NllRows<T> rows{};
        rows.positions = make_index(request.in[1].shape, strides, Order::logical);
        rows.class_stride = x.strides[1];
        rows.classes = x.shape[1];
        rows.inner = positions_in_row(request.in[1].shape);
        rows.weight_stride = request.has_in(2) ? request.in[2].strides[0] : 0;
        rows.ignore_index = op.ignore_index;
        return make_cuda_kernel(
            request,
            [rows, plan](const Queue& queue, const KernelArgs& v) {
                NllRows<T> bound = rows;
                bound.log_probabilities = v.input<T>(0);
                bound.target = v.input<std::int64_t>(1);
                bound.weights = v.input<T>(2);
                bound.numerator = v.output<T>(0);
                bound.weight = v.output<T>(1);
                bound.status = v.status;
                bound.step = v.step;
                bound.shard = v.shard;
                bound.first_row = v.first_row;
                reduce(queue, "nll_forward", plan, bound, v.scratch);
            },
            plan.scratch_bytes<NllRows<T>>());
    });
}

template <int width, class T>
void nll_backward_rows(const Queue& queue, const NllGradient<T>& of) {
    const NllBackwardRows<T, width> rows(of, of.targets.count);
    launch(queue, "nll_backward", rows.threads, rows);
}

template <int width, class T>
void nll_backward_positions(const Queue& queue, const NllGradient<T>& of) {
    const bool adjacent = of.targets.dims == 1 && of.targets.strides[0][0] == 1 && are_aligned<width>(of.target);
    launch(queue, "nll_backward", of.targets.count / width, NllBackwardPositions<T, width>{of, adjacent});
}

KernelPtr make_nll_backward(const NllBackward& op, KernelRequest& request) {
    const TensorMeta& d = request.out[0];
    const TensorMeta& target = request.in[1];
    const Shape strides[] = {target.strides};
    return visit_any_float(op.name, d.dtype, [&](auto zero) {
        using T = decltype(zero);
        NllGradient<T> of{};
        of.targets = make_index(target.shape, strides, Order::logical);
        of.weight_stride = request.has_in(2) ? request.in[2].strides[0] : 0;
        of.ignore_index = op.ignore_index;
        of.classes = d.shape[1];
        of.inner = positions_in_row(target.shape);
        return make_cuda_kernel(request, [of](const Queue& queue, const KernelArgs& v) {
            NllGradient<T> bound = of;
            bound.d = v.output<T>(0);
            bound.gradient = v.input<T>(0);
            bound.target = v.input<std::int64_t>(1);
            bound.weights = v.input<T>(2);
            constexpr int wide = widest<T>;
            if (bound.inner == 1 && bound.classes % wide == 0 && are_aligned<wide>(bound.d))
                nll_backward_rows<wide>(queue, bound);
            else if (bound.inner == 1)
                nll_backward_rows<1>(queue, bound);
            else if (bound.inner % 2 == 0 && are_aligned<2>(bound.d))
                nll_backward_positions<2>(queue, bound);
            else
                nll_backward_positions<1>(queue, bound);
        });
    });
}

/// `make` if all operands but the target have one 16-bit dtype; null otherwise.
template <class Op, KernelPtr (*make)(const Op&, KernelRequest&)>
KernelPtr make_half_nll(const Op& op, KernelRequest& request) {
    const DType dtype = request.out[0].dtype;
    const bool weighted = request.has_in(2);
    if (request.in[0].dtype != dtype || (weighted && request.in[2].dtype != dtype)) return nullptr;
    return make(op, request);
}

KernelPtr make_check_finite(const CheckFinite& op, KernelRequest& request) {
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [](const Queue& queue, const KernelArgs& v) {
            launch(queue, "check_finite", 1,
                   CheckFiniteElement<T>{v.input<T>(0), v.output<T>(0), v.status, v.step, v.shard});
        });
    });
}

}  // namespace

void add_loss_kernels(KernelTable& table) {
    table.add<NllForward, make_nll_forward>();
    table.add<NllBackward, make_nll_backward>();
    table.add<CheckFinite, make_check_finite>();
    table.add_half_types<NllForward, make_half_nll<NllForward, make_nll_forward>>();
    table.add_half_types<NllBackward, make_half_nll<NllBackward, make_nll_backward>>();
}

}  // namespace lockstep::cuda
