// Norms and clipping of gradients.
#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/parameter_rows.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/ops/internal/optimizer_operations.h"

namespace lockstep::cuda {

namespace {

/// The selected elements of a range.
struct Meant {
    Rows rows;  ///< empty: all elements
    GradientRange range;

    /// One past the last element of the parameter that contains element i of the range, within the range; 0 if the
    /// parameter is not selected.
    LOCKSTEP_HD_INLINE std::int64_t end_of(std::int64_t i) const {
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

/// A grain by as many threads as element::measure has sums, which are joined in the order of that function.
template <class T>
struct MeasureGrain {
    static constexpr int lanes = element::measure_lanes;
    Meant meant;
    double order;
    const T* gradients;
    double* measures;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t g = i / lanes, begin = g * MeasureGradients::grain;
        const int lane = static_cast<int>(i % lanes);
#if defined(__CUDA_ARCH__)
        if (order == 2) {
            // Loads are issued before the search for the parameter, whose latency they hide.
            const auto in_range =
                static_cast<int>(at_most_grain(meant.range.range.end - meant.range.range.begin - begin));
            T own[MeasureGradients::grain / lanes];
            LOCKSTEP_UNROLL
            for (int k = 0; k < MeasureGradients::grain / lanes; ++k) {
                const int place = k * lanes + lane;
                own[k] = place < in_range ? gradients[begin + place] : T(0);
            }
            const auto count = static_cast<int>(at_most_grain(meant.end_of(begin) - begin));
            double sum = 0;
            LOCKSTEP_UNROLL
            for (int k = 0; k < MeasureGradients::grain / lanes; ++k) {
                const auto gradient = k * lanes + lane < count ? static_cast<double>(own[k]) : 0.0;
                sum += gradient * gradient;
            }
            const unsigned together = ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
            for (int half = lanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(together, sum, half, lanes);
            if (lane == 0) measures[g] = sum;
            return;
        }
#endif
        if (lane != 0) return;
        const std::int64_t count = at_most_grain(meant.end_of(begin) - begin);
        measures[g] = count > 0 ? element::measure(gradients + begin, count, order) : 0.0;
    }
    static LOCKSTEP_HD_INLINE std::int64_t at_most_grain(std::int64_t count) {
        return count < MeasureGradients::grain ? count : MeasureGradients::grain;
    }
};

struct JoinMeasures {
    using Plans = NoColumns;
    using Value = double;
    double order;
    const double* measures;
    double* norm;

    LOCKSTEP_HD_INLINE Value zero() const { return 0; }
    LOCKSTEP_HD_INLINE void add(Value& all, std::int64_t, std::int64_t k) const {
        all = element::join_measures(all, measures[k], order);
    }
    LOCKSTEP_HD_INLINE void join(Value& all, const Value& other) const {
        all = element::join_measures(all, other, order);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& all) const { *norm = element::norm_of(all, order); }
};

struct MakeCoefficient {
    const double* norm;
    double max_norm;
    double* coefficient;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const {
        *coefficient = element::clip_coefficient(*norm, max_norm);
    }
};

struct CheckNorm {
    const double* norm;
    bool refuses;
    const StepCounters* step;
    StatusWord* agreed;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const { element::check_norm(*norm, refuses, *step, *agreed); }
};

struct MakeUnscaleFactor {
    const LossScale* state;
    double* factor;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const { *factor = element::unscale_factor(*state); }
};

struct UpdateScale {
    UpdateLossScale rule;
    const StatusWord* agreed;
    LossScale* state;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const {
        element::update_loss_scale(*state, *agreed, rule.growth_factor, rule.backoff_factor, rule.growth_interval);
    }
};

/// Replaces selected gradients by f(gradient).
template <class T, class F>
struct ChangeChunk {
    static constexpr int width = chunk_elements(sizeof(T));
    Meant meant;
    F f;
    T* gradients;
    bool aligned;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t first = i * width, end = meant.range.range.end - meant.range.range.begin;
        T chunk[width];
        const bool loaded = aligned && first + width <= end;
        if (loaded) load_chunk(gradients + first, chunk);  // before the search, whose latency it hides
        if (const std::int64_t selected = meant.end_of(first); loaded && first + width <= selected) {
            LOCKSTEP_UNROLL
            for (T& each : chunk) each = CastTo<T>::from(f(upcast(each)));
            return store_chunk(chunk, gradients + first);
        }
        LOCKSTEP_NO_UNROLL
        for (std::int64_t e = first; e < end && e < first + width; ++e)
            if (e < meant.end_of(e)) gradients[e] = CastTo<T>::from(f(upcast(gradients[e])));
    }
};

struct ScaleBy {
    const double* factor;
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T gradient) const {
        return gradient * static_cast<T>(*factor);
    }
};

template <class T>
struct ClampTo {
    T most;
    LOCKSTEP_HD_INLINE T operator()(T gradient) const { return element::clamp(gradient, most); }
};

template <class T, class F>
void change_gradients(const Queue& queue, const char* name, const Meant& meant, const F& f, T* gradients) {
    using Change = ChangeChunk<T, F>;
    launch(queue, name, ceil_div(meant.range.range.elements(), Change::width),
           Change{meant, f, gradients, is_aligned(gradients, chunk_bytes)});
}

KernelPtr make_measure_gradients(const MeasureGradients& op, KernelRequest& request) {
    request.want_contiguous(0);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            launch(queue, "measure_gradients",
                   MeasureGradients::grains(op.range.range.elements()) * MeasureGrain<T>::lanes,
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

KernelPtr make_check_grad_norm(const CheckGradNorm& op, KernelRequest& request) {
    return make_cuda_kernel(request, [refuses = op.refuses](const Queue& queue, const KernelArgs& v) {
        launch(queue, "check_grad_norm", 1, CheckNorm{v.input<double>(0), refuses, v.step, v.output<StatusWord>(0)});
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
            change_gradients(queue, "scale_gradients", meant_by(op.range, v, 1), ScaleBy{v.input<double>(0)},
                             v.output<T>(0));
        });
    });
}

KernelPtr make_clamp_gradients(const ClampGradients& op, KernelRequest& request) {
    return visit_any_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            using Number = UpcastType<T>;
            change_gradients(queue, "clamp_gradients", meant_by(op.range, v, 0),
                             ClampTo<Number>{static_cast<Number>(op.limit)}, v.output<T>(0));
        });
    });
}

}  // namespace

void add_gradient_kernels(KernelTable& table) {
    table.add<MeasureGradients, make_measure_gradients>();
    table.add<CombineMeasures, make_combine_measures>();
    table.add<ClipCoefficient, make_clip_coefficient>();
    table.add<CheckGradNorm, make_check_grad_norm>();
    table.add<UnscaleFactor, make_unscale_factor>();
    table.add<UpdateLossScale, make_update_loss_scale>();
    table.add<ScaleGradients, make_scale_gradients>();
    table.add<ClampGradients, make_clamp_gradients>();
    // Native kernels are necessary: conversions around an f32 kernel would not read the output that it updates in
    // place.
    table.add_half_types<ScaleGradients, make_scale_gradients>();
    table.add_half_types<ClampGradients, make_clamp_gradients>();
}

}  // namespace lockstep::cuda
