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

/// A grain by as many threads as element::measure has sums, which are joined in the order of that function. A thread
/// works on several grains, which usually belong to one parameter.
template <class T>
struct MeasureGrains {
    static constexpr std::int64_t grain = MeasureGradients::grain;
    static constexpr int lanes = element::measure_lanes;
    static constexpr int of_warp = 32 / lanes;                          // adjacent grains
    static constexpr int of_thread = 16 / static_cast<int>(sizeof(T));  // as many as registers hold
    static constexpr int terms = grain / lanes;                         // elements per lane
    Meant meant;
    double order;
    const T* gradients;
    double* measures;

    static std::int64_t threads(std::int64_t grains) { return ceil_div(grains, of_thread * of_warp) * 32; }

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const std::int64_t first = thread / 32 * (of_thread * of_warp) + thread % 32 / lanes;
        const int lane = static_cast<int>(thread % lanes);
#if defined(__CUDA_ARCH__)
        if (order == 2) {
            const std::int64_t end = (first + (of_thread - 1) * of_warp + 1) * grain;
            T own[of_thread][terms];
            if (end <= elements()) {  // before the search for the parameter, whose latency the loads hide
                LOCKSTEP_UNROLL
                for (int g = 0; g < of_thread; ++g) load(first + g * of_warp, lane, grain, own[g]);
                if (end <= meant.end_of(first * grain)) {
                    LOCKSTEP_UNROLL
                    for (int g = 0; g < of_thread; ++g) store_squares(first + g * of_warp, lane, own[g]);
                    return;
                }
            }
            LOCKSTEP_NO_UNROLL
            for (std::int64_t g = first; g < first + of_thread * of_warp && g * grain < elements(); g += of_warp) {
                load(g, lane, at_most_grain(meant.end_of(g * grain) - g * grain), own[0]);
                store_squares(g, lane, own[0]);
            }
            return;
        }
#endif
        if (lane != 0) return;
        const std::int64_t end = elements();
        for (std::int64_t g = first; g * grain < end && g < first + of_thread * of_warp; g += of_warp) {
            const std::int64_t count = at_most_grain(meant.end_of(g * grain) - g * grain);
            measures[g] = count > 0 ? element::measure(gradients + g * grain, count, order) : 0.0;
        }
    }

private:
    LOCKSTEP_HD_INLINE std::int64_t elements() const { return meant.range.range.end - meant.range.range.begin; }
    static LOCKSTEP_HD_INLINE std::int64_t at_most_grain(std::int64_t count) { return count < grain ? count : grain; }
#if defined(__CUDA_ARCH__)
    /// The elements of one lane; zeros after the first `count` elements of the grain.
    __device__ __forceinline__ void load(std::int64_t g, int lane, std::int64_t count, T (&own)[terms]) const {
        LOCKSTEP_UNROLL
        for (int k = 0; k < terms; ++k) {
            const int place = k * lanes + lane;
            own[k] = place < count ? gradients[g * grain + place] : T(0);
        }
    }
    __device__ __forceinline__ void store_squares(std::int64_t g, int lane, const T (&own)[terms]) const {
        double sum = 0;
        LOCKSTEP_UNROLL
        for (const T each : own) sum += static_cast<double>(each) * static_cast<double>(each);
        const unsigned together = ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
        for (int half = lanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(together, sum, half, lanes);
        if (lane == 0) measures[g] = sum;
    }
#endif
};

struct JoinMeasures {
    using Plans = NoColumns;
    static constexpr int resident_blocks = 4;
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
struct ChangeChunks {
    static constexpr int resident_blocks = sizeof(T) == 8 ? 4 : 0;
    static constexpr int width = chunk_elements(sizeof(T));
    using Chunks = ThreadChunks<width>;
    Meant meant;
    F f;
    T* gradients;
    bool aligned;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const std::int64_t first = Chunks::first(thread), end = meant.range.range.end - meant.range.range.begin;
        if (first >= end) return;
        T chunks[Chunks::count][width];
        const bool loaded = aligned && first + Chunks::reach <= end;
        if (loaded) {  // before the search, whose latency it hides
            LOCKSTEP_UNROLL
            for (int c = 0; c < Chunks::count; ++c) load_chunk(gradients + first + c * Chunks::step, chunks[c]);
        }
        if (const std::int64_t selected = meant.end_of(first); loaded && first + Chunks::reach <= selected) {
            LOCKSTEP_UNROLL
            for (auto& chunk : chunks) {
                LOCKSTEP_UNROLL
                for (T& each : chunk) each = CastTo<T>::from(f(upcast(each)));
            }
            LOCKSTEP_UNROLL
            for (int c = 0; c < Chunks::count; ++c) store_chunk(chunks[c], gradients + first + c * Chunks::step);
            return;
        }
        LOCKSTEP_NO_UNROLL
        for (int c = 0; c < Chunks::count; ++c) change_any_chunk(first + c * Chunks::step, end);
    }

private:
    LOCKSTEP_HD_INLINE void change_any_chunk(std::int64_t first, std::int64_t end) const {
        if (first >= end) return;
        const std::int64_t selected = meant.end_of(first);
        if (aligned && first + width <= selected) {
            T chunk[width];
            load_chunk(gradients + first, chunk);
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
    using Change = ChangeChunks<T, F>;
    launch(queue, name, Change::Chunks::threads(meant.range.range.elements()),
           Change{meant, f, gradients, is_aligned(gradients, chunk_bytes)});
}

KernelPtr make_measure_gradients(const MeasureGradients& op, KernelRequest& request) {
    request.want_contiguous(0);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            using Measure = MeasureGrains<T>;
            launch(queue, "measure_gradients", Measure::threads(MeasureGradients::grains(op.range.range.elements())),
                   Measure{meant_by(op.range, v, 1), op.order, v.input<T>(0), v.output<double>(0)});
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
