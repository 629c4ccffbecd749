// Norms and clipping of gradients.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/rows.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/ops/internal/gradient_operations.h"

namespace lockstep::cuda {

namespace {

/// Which elements of a range are meant.
struct Meant {
    Rows rows;  ///< none: all of them
    GradientRange range;

    /// One past the last element of the parameter in which element i of the range lies, within the range; 0 where it is
    /// not meant.
    LOCKSTEP_ELEMENT std::int64_t end_of(std::int64_t i) const {
        const std::int64_t last = range.range.end - range.range.begin;
        if (rows.first == nullptr) return last;
        const int parameter = rows.at(range.range.begin + i, range.range);
        if (parameter < 0) return 0;
        const ParameterRow& row = rows[parameter];
        if (row.group < 0 || (range.group != GradientRange::all_groups && range.group != row.group)) return 0;
        const std::int64_t end = row.end - range.range.begin;
        return end < last ? end : last;
    }
};

Meant meant_by(const GradientRange& range, const KernelArgs& v, int rows) {
    return {{v.input<char>(rows), range.row_bytes}, range};
}

template <class T>
struct MeasureGrain {
    Meant meant;
    double order;
    const T* gradients;
    double* measures;

    LOCKSTEP_ELEMENT void operator()(std::int64_t g) const {
        const std::int64_t begin = g * MeasureGradients::grain, end = meant.end_of(begin);
        const std::int64_t left = end - begin;
        const std::int64_t count = left < MeasureGradients::grain ? left : MeasureGradients::grain;
        measures[g] = count > 0 ? element::measure(gradients + begin, count, order) : 0.0;
    }
};

struct JoinMeasures {
    using Value = double;
    double order;
    const double* measures;
    double* norm;

    LOCKSTEP_ELEMENT Value zero() const { return 0; }
    LOCKSTEP_ELEMENT void add(Value& all, std::int64_t, std::int64_t k) const {
        all = element::join_measures(all, measures[k], order);
    }
    LOCKSTEP_ELEMENT void join(Value& all, const Value& other) const {
        all = element::join_measures(all, other, order);
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t, const Value& all) const { *norm = element::norm_of(all, order); }
};

struct MakeCoefficient {
    const double* norm;
    double max_norm;
    double* coefficient;
    LOCKSTEP_ELEMENT void operator()(std::int64_t) const { *coefficient = element::clip_coefficient(*norm, max_norm); }
};

struct Judge {
    const double* norm;
    bool refuses;
    const StepState* step;
    StatusWord* agreed;
    LOCKSTEP_ELEMENT void operator()(std::int64_t) const { element::judge(*norm, refuses, *step, *agreed); }
};

struct MakeUnscaleFactor {
    const LossScale* state;
    double* factor;
    LOCKSTEP_ELEMENT void operator()(std::int64_t) const { *factor = element::unscale_factor(*state); }
};

struct UpdateScale {
    UpdateLossScale rule;
    const StatusWord* agreed;
    LossScale* state;
    LOCKSTEP_ELEMENT void operator()(std::int64_t) const {
        element::update_loss_scale(*state, *agreed, rule.growth_factor, rule.backoff_factor, rule.growth_interval);
    }
};

template <class T>
struct ScaleElement {
    Meant meant;
    const double* factor;
    T* gradients;
    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        if (i < meant.end_of(i)) gradients[i] = Narrow<T>::from(widen(gradients[i]) * static_cast<Widened<T>>(*factor));
    }
};

template <class T>
struct ClampElement {
    Meant meant;
    Widened<T> most;
    T* gradients;
    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        if (i < meant.end_of(i)) gradients[i] = Narrow<T>::from(element::clamp(widen(gradients[i]), most));
    }
};

KernelPtr make_measure_gradients(const MeasureGradients& op, KernelRequest& request) {
    request.want_contiguous(0);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            launch(queue, "measure_gradients", MeasureGradients::grains(op.range.range.elements()),
                   MeasureGrain<T>{meant_by(op.range, v, 1), op.order, v.input<T>(0), v.output<double>(0)});
        });
    });
}

KernelPtr make_combine_measures(const CombineMeasures& op, KernelRequest& request) {
    const ReducePlan plan = ReducePlan::make(1, request.in[0].numel(), false);
    return make_cuda_kernel(
        request,
        [plan, order = op.order](const Queue& queue, const KernelArgs& v) {
            reduce(queue, "gradient_norm", plan, JoinMeasures{order, v.input<double>(0), v.output<double>(0)},
                   v.scratch);
        },
        plan.scratch_bytes<JoinMeasures>());
}

KernelPtr make_clip_coefficient(const ClipCoefficient& op, KernelRequest& request) {
    return make_cuda_kernel(request, [most = op.max_norm](const Queue& queue, const KernelArgs& v) {
        launch(queue, "clip_coefficient", 1, MakeCoefficient{v.input<double>(0), most, v.output<double>(0)});
    });
}

KernelPtr make_judge_norm(const JudgeNorm& op, KernelRequest& request) {
    return make_cuda_kernel(request, [refuses = op.refuses](const Queue& queue, const KernelArgs& v) {
        launch(queue, "judge_norm", 1, Judge{v.input<double>(0), refuses, v.step, v.output<StatusWord>(0)});
    });
}

KernelPtr make_unscale_factor(const UnscaleFactor& /*op*/, KernelRequest& request) {
    return make_cuda_kernel(request, [](const Queue& queue, const KernelArgs& v) {
        launch(queue, "unscale_factor", 1, MakeUnscaleFactor{v.input<LossScale>(0), v.output<double>(0)});
    });
}

KernelPtr make_update_loss_scale(const UpdateLossScale& op, KernelRequest& request) {
    return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
        launch(queue, "update_loss_scale", 1, UpdateScale{op, v.agreed, v.output<LossScale>(0)});
    });
}

KernelPtr make_scale_gradients(const ScaleGradients& op, KernelRequest& request) {
    return visit_any_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            launch(queue, "scale_gradients", op.range.range.elements(),
                   ScaleElement<T>{meant_by(op.range, v, 1), v.input<double>(0), v.output<T>(0)});
        });
    });
}

KernelPtr make_clamp_gradients(const ClampGradients& op, KernelRequest& request) {
    return visit_any_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            launch(queue, "clamp_gradients", op.range.range.elements(),
                   ClampElement<T>{meant_by(op.range, v, 0), static_cast<Widened<T>>(op.limit), v.output<T>(0)});
        });
    });
}

}  // namespace

void add_gradient_kernels(KernelTable& table) {
    table.add<MeasureGradients, make_measure_gradients>();
    table.add<CombineMeasures, make_combine_measures>();
    table.add<ClipCoefficient, make_clip_coefficient>();
    table.add<JudgeNorm, make_judge_norm>();
    table.add<UnscaleFactor, make_unscale_factor>();
    table.add<UpdateLossScale, make_update_loss_scale>();
    table.add<ScaleGradients, make_scale_gradients>();
    table.add<ClampGradients, make_clamp_gradients>();
    // What is changed in place is read first: conversions around a kernel for f32 would not do that.
    table.add_short_floats<ScaleGradients, make_scale_gradients>();
    table.add_short_floats<ClampGradients, make_clamp_gradients>();
}

}  // namespace lockstep::cuda
