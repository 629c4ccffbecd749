// Reductions with an order of summation that depends only on the shape: a group of threads sums in a fixed number of
// lanes, which are joined in a fixed order. Long reductions are divided into parts, which a second kernel joins. No
// atomics.
#pragma once

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/round_up.h"

#if defined(__CUDACC__)
#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>
#endif

namespace lockstep::cuda {

/// `outputs` results of `count` elements each.
struct ReducePlan {
    std::int64_t outputs = 0, count = 0;
    int lanes = 1;    ///< threads that share a job: one, a warp or a block; those of a column, if there are columns
    int parts = 1;    ///< pieces of the elements
    int columns = 0;  ///< jobs that share a block, with adjacent outputs; 0: those of whole warps or blocks

    static constexpr int warp_threads = 32;

    /// Lanes and parts for a shape. `across`: adjacent memory belongs to different outputs rather than to elements of
    /// one output, so that threads with adjacent reads compute separate outputs. `width`: each of the `count` elements
    /// is a pack of this many.
    static ReducePlan make(std::int64_t outputs, std::int64_t count, bool across, int width = 1) {
        ReducePlan plan{outputs, count, 1, 1, 0};
        if (across && count > warp_threads && outputs < enough_threads / 4) {
            plan.columns = 1;
            while (plan.columns < warp_threads && plan.columns < outputs) plan.columns *= 2;
            plan.lanes = block_threads / plan.columns;
        } else if (!across && count * width > warp_threads) {
            plan.lanes = count * width > 2048 ? block_threads : warp_threads;
        }
        const std::int64_t useful = count / (plan.lanes * std::max(16 / width, 4));
        const std::int64_t threads = plan.columns > 0 ? enough_threads / 2 : enough_threads;  // with wide loads
        const std::int64_t wanted = threads / std::max<std::int64_t>(1, outputs * plan.lanes);
        plan.parts =
            static_cast<int>(std::clamp<std::int64_t>(std::min(useful, wanted), 1, plan.lanes > 1 ? 512 : 1024));
        return plan;
    }
    /// The reduction that joins the results of the parts, if each output has `results`.
    ReducePlan of_parts(int results) const {
        const std::int64_t all = outputs * results;
        return {all, parts, parts > 2 * warp_threads && all < 64 ? block_threads : warp_threads, 1, 0};
    }
    std::int64_t jobs() const { return outputs * parts; }
    /// Blocks whose threads share columns.
    LOCKSTEP_HD_INLINE std::int64_t column_blocks() const { return ceil_div(outputs, columns) * parts; }
    template <class R>
    std::size_t scratch_bytes() const {
        return parts > 1 ? static_cast<std::size_t>(jobs()) * sizeof(typename R::Value) : 0;
    }
};

/// r.begin(output) if R offers it, otherwise the output's number.
template <class R>
LOCKSTEP_HD_INLINE auto begin_lane(const R& r, std::int64_t output) {
    if constexpr (requires { r.begin(output); })
        return r.begin(output);
    else
        return output;
}

/// Plans of a reduction whose other forms need not be compiled.
struct OnlyColumns {};  // or jobs of one lane
struct NoColumns {};
struct AnyPlan {};
template <class R, class Restriction>
concept HasPlans = std::is_same_v<typename R::Plans, Restriction>;

/// Result of one lane. R offers
///   Value                                       accumulator
///   Value zero() const
///   Lane begin(output) const                    optional: what all elements of an output share, such as its address
///   void add(Value&, output, element) const     adds one element; with `begin`, takes a `const Lane&` as output
///   void join(Value&, const Value&) const       adds the values that are later in order
///   void finish(output, const Value&) const     stores the result
///   Plans                                       optional: OnlyColumns, NoColumns or AnyPlan
/// or, in place of `begin` and `add`,
///   void add_all(Value&, output, first, end, step) const    adds the elements first, first + step, ... before end
/// If an output is a pack of adjacent results, and Value an array with one value for each, R offers as well
///   static constexpr int channels               number of results
///   R' single() const                           the same for single results, with the elements of Value as R'::Value
template <class R>
LOCKSTEP_HD_INLINE typename R::Value add_lane(const R& r, const ReducePlan& plan, std::int64_t output,
                                              std::int64_t part, int lane) {
    const std::int64_t length = plan.parts == 1 ? plan.count : ceil_div(plan.count, plan.parts);
    const std::int64_t end = (part + 1) * length < plan.count ? (part + 1) * length : plan.count;
    typename R::Value value = r.zero();
    const std::int64_t first = part * length + lane;
    if constexpr (requires { r.add_all(value, output, first, end, plan.lanes); }) {
        r.add_all(value, output, first, end, plan.lanes);
    } else {
        const auto shared = begin_lane(r, output);
        for (std::int64_t k = first; k < end; k += plan.lanes) r.add(value, shared, k);
    }
    return value;
}

template <class R>
LOCKSTEP_HD_INLINE typename R::Value add_lane(const R& r, const ReducePlan& plan, std::int64_t job, int lane) {
    const std::int64_t part = plan.parts == 1 ? 0 : job / plan.outputs;
    return add_lane(r, plan, job - part * plan.outputs, part, lane);
}

/// Stores the result of a job, as the final one if there is only one part.
template <class R>
LOCKSTEP_HD_INLINE void finish_job(const R& r, const ReducePlan& plan, std::int64_t job, const typename R::Value& value,
                                   typename R::Value* partial) {
    if (plan.parts > 1)
        partial[job] = value;
    else
        r.finish(job, value);
}

/// A job of one lane.
template <class R>
struct ReduceAlone {
    R r;
    ReducePlan plan;
    typename R::Value* partial;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t job) const {
        finish_job(r, plan, job, add_lane(r, plan, job, 0), partial);
    }
};

/// One thread of a block with columns: adjacent threads work on adjacent outputs, and `lanes` threads on each.
struct ColumnThread {
    std::int64_t output, part;
    int lane;

    LOCKSTEP_HD_INLINE ColumnThread(const ReducePlan& plan, std::int64_t block, int thread) {
        const std::int64_t groups = ceil_div(plan.outputs, plan.columns);
        part = plan.parts == 1 ? 0 : block / groups;
        lane = thread / plan.columns;
        output = (block - part * groups) * plan.columns + (thread - lane * plan.columns);
    }
    LOCKSTEP_HD_INLINE std::int64_t job(const ReducePlan& plan) const { return part * plan.outputs + output; }
};

#if defined(__CUDACC__)
/// Jobs of a plan with columns. A tree in shared memory joins the lanes.
template <class R>
__global__ void __launch_bounds__(block_threads) reduce_columns(R r, ReducePlan plan, typename R::Value* partial) {
    using Value = typename R::Value;
    __shared__ alignas(alignof(Value)) unsigned char memory[block_threads * sizeof(Value)];
    Value* const values = reinterpret_cast<Value*>(memory);
    const int thread = static_cast<int>(threadIdx.x);
    for (std::int64_t block = blockIdx.x; block < plan.column_blocks(); block += gridDim.x) {
        const ColumnThread own(plan, block, thread);
        const bool used = own.output < plan.outputs;
        Value value = used ? add_lane(r, plan, own.output, own.part, own.lane) : r.zero();
        for (int half = plan.lanes / 2; half > 0; half /= 2) {
            values[thread] = value;
            __syncthreads();
            if (own.lane < half) r.join(value, values[thread + half * plan.columns]);
            __syncthreads();
        }
        if (own.lane == 0 && used) finish_job(r, plan, own.job(plan), value, partial);
    }
}

/// Jobs of `lanes` lanes: a warp's or a block's. CUB joins lanes in a fixed order.
template <int lanes, class R>
__global__ void __launch_bounds__(block_threads) reduce_jobs(R r, ReducePlan plan, typename R::Value* partial) {
    using Value = typename R::Value;
    constexpr bool alone = lanes == block_threads;  // one job a block
    using Joined = std::conditional_t<alone, cub::BlockReduce<Value, block_threads>, cub::WarpReduce<Value>>;
    constexpr int jobs_per_block = block_threads / lanes;
    __shared__ typename Joined::TempStorage memory[jobs_per_block];
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const int slot = static_cast<int>(threadIdx.x) / lanes;
    const auto join = [&r](const Value& a, const Value& b) {
        Value both = a;
        r.join(both, b);
        return both;
    };
    const std::int64_t jobs = plan.outputs * plan.parts;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * jobs_per_block;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * jobs_per_block; first < jobs; first += step) {
        const std::int64_t job = first + slot;
        const Value own = job < jobs ? add_lane(r, plan, job, lane) : r.zero();
        const Value all = Joined(memory[slot]).Reduce(own, join);  // valid in lane 0
        if (lane == 0 && job < jobs) finish_job(r, plan, job, all, partial);
        __syncthreads();  // the memory is reused
    }
}
#endif

/// Enqueues the jobs of a plan with this number of lanes.
template <int lanes, class R>
void reduce_together(const Queue& queue, const char* name, const ReducePlan& plan, const R& r,
                     typename R::Value* partial) {
#if defined(__CUDACC__)
    launch_blocks(queue, name, blocks_for(plan.jobs(), block_threads / lanes), reduce_jobs<lanes, R>, R(r),
                  ReducePlan(plan), partial);
#else
    const auto loop = [r, plan, partial] {
        for (std::int64_t job = 0; job < plan.jobs(); ++job) {
            typename R::Value value = r.zero();
            for (int lane = 0; lane < lanes; ++lane) r.join(value, add_lane(r, plan, job, lane));
            finish_job(r, plan, job, value, partial);
        }
    };
    check(enqueue_host_twin(queue, name, loop), name);
#endif
}

/// Enqueues the jobs of a plan with columns.
template <class R>
void reduce_by_columns(const Queue& queue, const char* name, const ReducePlan& plan, const R& r,
                       typename R::Value* partial) {
#if defined(__CUDACC__)
    launch_blocks(queue, name, blocks_for(plan.column_blocks(), 1), reduce_columns<R>, R(r), ReducePlan(plan), partial);
#else
    const auto loop = [r, plan, partial] {
        for (std::int64_t job = 0; job < plan.jobs(); ++job) {
            typename R::Value value = r.zero();
            for (int lane = 0; lane < plan.lanes; ++lane) r.join(value, add_lane(r, plan, job, lane));
            finish_job(r, plan, job, value, partial);
        }
    };
    check(enqueue_host_twin(queue, name, loop), name);
#endif
}

/// The same reduction over the partial results of another one.
template <class R>
struct JoinParts {
    using Value = typename R::Value;
    R r;
    std::int64_t outputs;
    const Value* partial;
    LOCKSTEP_HD_INLINE Value zero() const { return r.zero(); }
    LOCKSTEP_HD_INLINE void add(Value& value, std::int64_t output, std::int64_t part) const {
        r.join(value, partial[part * outputs + output]);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const { r.join(value, other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& value) const { r.finish(output, value); }
};

/// Enqueues the join of the parts of a reduction.
template <class R>
void join_parts(const Queue& queue, const char* name, const ReducePlan& plan, const R& r, const void* partial) {
    const JoinParts<R> parts{r, plan.outputs, static_cast<const typename R::Value*>(partial)};
    const auto nowhere = static_cast<typename R::Value*>(nullptr);
    if (plan.lanes == block_threads)
        reduce_together<block_threads>(queue, name, plan, parts, nowhere);
    else
        reduce_together<ReducePlan::warp_threads>(queue, name, plan, parts, nowhere);
}

/// Enqueues the jobs of a plan. No kernels are compiled for plans that R never has.
template <class R>
void reduce_parts(const Queue& queue, const char* name, const ReducePlan& plan, const R& r,
                  typename R::Value* partial) {
    constexpr int warp = ReducePlan::warp_threads;
    if (plan.lanes == 1) return launch(queue, name, plan.jobs(), ReduceAlone<R>{r, plan, partial});
    if constexpr (!HasPlans<R, NoColumns>)
        if (plan.columns > 0) return reduce_by_columns(queue, name, plan, r, partial);
    if constexpr (!HasPlans<R, OnlyColumns>) {
        if (plan.lanes == block_threads)
            reduce_together<block_threads>(queue, name, plan, r, partial);
        else
            reduce_together<warp>(queue, name, plan, r, partial);
    }
}

/// Enqueues the reduction. `scratch`: plan.scratch_bytes<R>() bytes.
template <class R>
void reduce(const Queue& queue, const char* name, const ReducePlan& plan, const R& r, void* scratch) {
    if (plan.outputs <= 0) return;
    auto* partial = static_cast<typename R::Value*>(scratch);
    reduce_parts(queue, name, plan, r, partial);
    if (plan.parts == 1) return;
    if constexpr (requires { r.single(); })
        join_parts(queue, name, plan.of_parts(R::channels), r.single(), scratch);
    else
        join_parts(queue, name, plan.of_parts(1), r, scratch);
}

}  // namespace lockstep::cuda
