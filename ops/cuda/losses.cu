// Negative log-likelihood, and whether a loss is finite.
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/report.h"
#include "lockstep/ops/internal/nn_operations.h"

namespace lockstep::cuda {

namespace {

struct NllSums {
    double numerator, weight;
    std::int64_t bad_row;  // first position whose target is not a class; -1: none
};

template <class T>
struct NllRows {
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
    LOCKSTEP_HD_INLINE void add(Value& value, std::int64_t, std::int64_t row) const {
        const auto at = positions(row);
        const std::int64_t t = target[at.of[1]];
        if (t == ignore_index) return;
        if (t < 0 || t >= classes) {
            if (value.bad_row < 0 || row < value.bad_row) value.bad_row = row;
            return;
        }
        const double w = weights != nullptr ? static_cast<double>(weights[t * weight_stride]) : 1.0;
        if (log_probabilities != nullptr)
            value.numerator -= w * static_cast<double>(log_probabilities[at.of[0] + t * class_stride]);
        value.weight += w;
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        value.numerator += other.numerator;
        value.weight += other.weight;
        if (other.bad_row >= 0 && (value.bad_row < 0 || other.bad_row < value.bad_row)) value.bad_row = other.bad_row;
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& value) const {
        *numerator = static_cast<T>(value.numerator);
        *weight = static_cast<T>(value.weight);
        if (value.bad_row >= 0)
            report(status, StatusCode::target_out_of_range, shard, step, first_row + value.bad_row / inner,
                   target[positions(value.bad_row).of[1]]);
    }
};

/// Gradients of one target, whose only element that is not zero is that of its class.
template <class T>
struct NllGradient {
    StridedIndex<1> targets;
    T* d;  // (N, C, ...) row-major
    const T* gradient;
    const std::int64_t* target;
    const T* weights;
    std::int64_t weight_stride;
    std::int64_t ignore_index, classes, inner;

    LOCKSTEP_HD_INLINE T value(std::int64_t t) const {
        return weights != nullptr ? -*gradient * weights[t * weight_stride] : -*gradient;
    }
    LOCKSTEP_HD_INLINE bool counts(std::int64_t t) const { return t >= 0 && t < classes && t != ignore_index; }
};

/// One thread per target: adjacent threads write adjacent elements of each class.
template <class T>
struct NllBackwardPositions {
    NllGradient<T> of;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t t = of.target[of.targets(i).of[0]];
        const bool counts = of.counts(t);
        const T value = counts ? of.value(t) : T(0);
        const std::int64_t row = quick_quotient(i, of.inner);
        T* to = of.d + row * of.classes * of.inner + (i - row * of.inner);
        for (std::int64_t c = 0; c < of.classes; ++c, to += of.inner) *to = counts && c == t ? value : T(0);
    }
};

/// For inner == 1. A thread has one class in several rows, so that it divides once.
template <class T>
struct NllBackwardRows {
    NllGradient<T> of;
    std::int64_t rows, rows_ahead;

    NllBackwardRows(const NllGradient<T>& gradient, std::int64_t count)
        : of(gradient),
          rows(count),
          rows_ahead(std::clamp<std::int64_t>(enough_threads / std::max<std::int64_t>(gradient.classes, 1), 1,
                                              std::max<std::int64_t>(count, 1))) {}
    std::int64_t threads() const { return rows > 0 ? rows_ahead * of.classes : 0; }

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const std::int64_t first = quick_quotient(thread, of.classes);
        const std::int64_t c = thread - first * of.classes;
        for (std::int64_t row = first; row < rows; row += rows_ahead) {
            const std::int64_t t = of.target[of.targets(row).of[0]];
            of.d[row * of.classes + c] = t == c && t != of.ignore_index ? of.value(t) : T(0);
        }
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
    return visit_float(op.name, x.dtype, [&](auto zero) {
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

KernelPtr make_nll_backward(const NllBackward& op, KernelRequest& request) {
    const TensorMeta& d = request.out[0];
    const TensorMeta& target = request.in[1];
    const Shape strides[] = {target.strides};
    return visit_float(op.name, d.dtype, [&](auto zero) {
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
            if (bound.inner == 1) {
                const NllBackwardRows<T> rows(bound, bound.targets.count);
                launch(queue, "nll_backward", rows.threads(), rows);
            } else {
                launch(queue, "nll_backward", bound.targets.count, NllBackwardPositions<T>{bound});
            }
        });
    });
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
}

}  // namespace lockstep::cuda
