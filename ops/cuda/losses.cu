// Negative log-likelihood, and whether a loss is finite.
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/report.h"
#include "lockstep/ops/internal/loss_operations.h"

namespace lockstep::cuda {

namespace {

struct NllSums {
    double numerator, weight;
    std::int64_t bad_row;  // first position whose target is no class; -1: none
};

template <class T>
struct NllRows {
    using Value = NllSums;
    const T* log_probabilities;  // or null: only the weight is wanted
    StridedIndex<2> positions;   // log_probabilities of the first class, target
    std::int64_t class_stride, classes, inner;
    const std::int64_t* target;
    const T* weights;  // or null
    std::int64_t weight_stride;
    std::int64_t ignore_index;
    T* numerator;
    T* weight;
    StatusWord* status;
    const StepState* step;
    int shard;
    std::int64_t first_row;

    LOCKSTEP_ELEMENT Value zero() const { return {0, 0, -1}; }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t, std::int64_t row) const {
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
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        value.numerator += other.numerator;
        value.weight += other.weight;
        if (other.bad_row >= 0 && (value.bad_row < 0 || other.bad_row < value.bad_row)) value.bad_row = other.bad_row;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t, const Value& value) const {
        *numerator = static_cast<T>(value.numerator);
        *weight = static_cast<T>(value.weight);
        if (value.bad_row >= 0)
            report(status, StatusCode::target_out_of_range, shard, step, first_row + value.bad_row / inner,
                   target[positions(value.bad_row).of[1]]);
    }
};

template <class T>
struct NllBackwardElement {
    StridedIndex<1> targets;  // of the elements of d
    T* d;                     // (N, C, ...) row-major
    const T* gradient;
    const std::int64_t* target;
    const T* weights;
    std::int64_t weight_stride;
    std::int64_t ignore_index, classes, inner;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::int64_t t = target[targets(i).of[0]];
        const bool counts = t == i / inner % classes && t != ignore_index;
        d[i] = !counts ? T(0) : weights != nullptr ? -*gradient * weights[t * weight_stride] : -*gradient;
    }
};

template <class T>
struct CheckFiniteElement {
    const T* x;
    T* y;
    StatusWord* status;
    const StepState* step;
    int shard;

    LOCKSTEP_ELEMENT void operator()(std::int64_t) const {
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
    Shape of_targets = request.in[1].strides;
    of_targets.insert(1, 0);
    const Shape strides[] = {of_targets};
    return visit_float(op.name, d.dtype, [&](auto zero) {
        using T = decltype(zero);
        NllBackwardElement<T> element{};
        element.targets = make_index(d.shape, strides, Order::logical);
        element.weight_stride = request.has_in(2) ? request.in[2].strides[0] : 0;
        element.ignore_index = op.ignore_index;
        element.classes = d.shape[1];
        element.inner = positions_in_row(request.in[1].shape);
        return make_cuda_kernel(request, [element, count = d.numel()](const Queue& queue, const KernelArgs& v) {
            NllBackwardElement<T> bound = element;
            bound.d = v.output<T>(0);
            bound.gradient = v.input<T>(0);
            bound.target = v.input<std::int64_t>(1);
            bound.weights = v.input<T>(2);
            launch(queue, "nll_backward", count, bound);
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
