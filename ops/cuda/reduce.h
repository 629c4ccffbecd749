// Reductions with an order of summation that depends only on the shape: a group of threads sums in a fixed number of
// lanes, which are joined in a fixed order. Long reductions are divided into parts. The block or warp that stores the
// last part of a result joins all of them, also in a fixed order: which one it is does not matter.
#pragma once

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/row_kernels.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/cuda/stream_counters.h"
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
        if (across && count > warp_threads) {
            plan.columns = outputs < enough_threads / 4 ? 1 : block_threads;
            while (plan.columns < warp_threads && plan.columns < outputs) plan.columns *= 2;
            plan.lanes = block_threads / plan.columns;
        } else if (!across && count * width > warp_threads) {
            plan.lanes = count * width > 2048 ? block_threads : warp_threads;
        } else {
            return plan;  // a thread adds few elements
        }
        const std::int64_t useful = count / (plan.lanes * std::max(16 / width, 4));
        const bool wide = plan.columns > 0 && plan.lanes > 1;  // loads
        const std::int64_t threads = wide ? enough_threads / 2 : enough_threads;
        const std::int64_t wanted = threads / std::max<std::int64_t>(1, outputs * plan.lanes);
        plan.parts = static_cast<int>(std::clamp<std::int64_t>(std::min(useful, wanted), 1, 512));
        return plan;
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
struct LongColumns {};  // columns of several lanes or parts
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
///   Value joined(const Value&, const Group&) const    optional: the join of the lanes of a warp or block (RowGroup)
///   Plans                                       optional: OnlyColumns, LongColumns, NoColumns or AnyPlan
///   resident_blocks                             optional (launch.h)
/// or, in place of `begin` and `add`,
///   void add_all(Value&, output, first, end, step) const    adds the elements first, first + step, ... before end
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

/// Results of the parts of a reduction. Null if it has one part.
template <class Value>
struct Parts {
    Value* results;    ///< (parts, outputs)
    unsigned* stored;  ///< number of parts whose result is stored, for each output or block of columns
};

/// Whether a part's result is accessed in chunks of 16 bytes: its type is aligned so, and has no padding. On devices,
/// the first chunks of all jobs are followed by the second ones, and so on: a warp accesses adjacent chunks.
template <class Value>
concept StoredInChunks = alignof(Value) == 16;

/// Stores the result of a job.
template <class Value>
LOCKSTEP_HD_INLINE void store_part(const Value& value, Value* results, std::int64_t job,
                                   [[maybe_unused]] std::int64_t jobs) {
#if defined(__CUDA_ARCH__)
    if constexpr (StoredInChunks<Value>) {
        uint4 chunks[sizeof(Value) / 16];
        memcpy(chunks, &value, sizeof value);
        LOCKSTEP_UNROLL
        for (std::size_t i = 0; i < sizeof value / 16; ++i)
            reinterpret_cast<uint4*>(results)[static_cast<std::int64_t>(i) * jobs + job] = chunks[i];
        return;
    }
#endif
    results[job] = value;
}
template <class Value>
LOCKSTEP_HD_INLINE Value load_part(const Value* results, std::int64_t job, [[maybe_unused]] std::int64_t jobs) {
#if defined(__CUDA_ARCH__)
    if constexpr (StoredInChunks<Value>) {
        uint4 chunks[sizeof(Value) / 16];
        LOCKSTEP_UNROLL
        for (std::size_t i = 0; i < sizeof(Value) / 16; ++i)
            chunks[i] = reinterpret_cast<const uint4*>(results)[static_cast<std::int64_t>(i) * jobs + job];
        Value value;
        memcpy(&value, chunks, sizeof value);
        return value;
    }
#endif
    return results[job];
}

/// Result of one lane of the join of an output's parts.
template <class R>
LOCKSTEP_HD_INLINE typename R::Value add_parts(const R& r, const ReducePlan& plan, std::int64_t output, int lane,
                                               const typename R::Value* results) {
    typename R::Value value = r.zero();
    for (std::int64_t part = lane; part < plan.parts; part += plan.lanes)
        r.join(value, load_part(results, part * plan.outputs + output, plan.outputs * plan.parts));
    return value;
}

/// Stores the result of a job, as the final one if there is only one part.
template <class R>
LOCKSTEP_HD_INLINE void finish_job(const R& r, const ReducePlan& plan, std::int64_t job, const typename R::Value& value,
                                   const Parts<typename R::Value>& parts) {
    if (plan.parts > 1)
        store_part(value, parts.results, job, plan.outputs * plan.parts);
    else
        r.finish(job, value);
}

/// A reduction of one lane and one part.
template <class R>
struct ReduceAlone {
    static constexpr int resident_blocks = cuda::resident_blocks<R>;
    R r;
    ReducePlan plan;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t output) const { r.finish(output, add_lane(r, plan, output, 0)); }
};

/// One thread of a block with columns: adjacent threads work on adjacent outputs, and `lanes` threads on each.
struct ColumnThread {
    std::int64_t group, output, part;  // group: of outputs whose elements the block reads
    int lane;

    LOCKSTEP_HD_INLINE ColumnThread(const ReducePlan& plan, std::int64_t block, int thread) {
        const std::int64_t groups = ceil_div(plan.outputs, plan.columns);
        part = plan.parts == 1 ? 0 : block / groups;
        lane = thread / plan.columns;
        group = block - part * groups;
        output = group * plan.columns + (thread - lane * plan.columns);
    }
    LOCKSTEP_HD_INLINE std::int64_t job(const ReducePlan& plan) const { return part * plan.outputs + output; }
};

#if defined(__CUDACC__)
/// For the thread that has stored a part's result, or that has synchronized with those that have: whether all parts are
/// stored now. If so, threads that synchronize with it may read them.
__device__ inline bool is_last_part(unsigned* stored, int parts) {
    const auto last = static_cast<unsigned>(parts - 1);
    __threadfence();                                          // results are visible before they are counted
    const bool are_stored = atomicInc(stored, last) == last;  // the last one sets the counter to zero
    __threadfence();
    return are_stored;
}

/// Joins values of the lanes of a block with columns by a tree in shared memory. Lane 0 receives the result.
template <class R>
__device__ void join_columns(const R& r, const ReducePlan& plan, int lane, typename R::Value& value,
                             typename R::Value* values) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int half = plan.lanes / 2; half > 0; half /= 2) {
        values[thread] = value;
        __syncthreads();
        if (lane < half) r.join(value, values[thread + half * plan.columns]);
        __syncthreads();
    }
}

/// Jobs of a plan with columns.
template <class R>
__global__ void __launch_bounds__(block_threads, resident_blocks<R>)
    reduce_columns(R r, ReducePlan plan, Parts<typename R::Value> parts) {
    using Value = typename R::Value;
    __shared__ alignas(alignof(Value)) unsigned char memory[block_threads * sizeof(Value)];
    __shared__ bool is_last;
    Value* const values = reinterpret_cast<Value*>(memory);
    const int thread = static_cast<int>(threadIdx.x);
    for (std::int64_t block = blockIdx.x; block < plan.column_blocks(); block += gridDim.x) {
        const ColumnThread own(plan, block, thread);
        const bool used = own.output < plan.outputs;
        Value value = used ? add_lane(r, plan, own.output, own.part, own.lane) : r.zero();
        join_columns(r, plan, own.lane, value, values);
        if (own.lane == 0 && used) finish_job(r, plan, own.job(plan), value, parts);
        if (plan.parts == 1) continue;
        __syncthreads();  // all columns are stored
        if (thread == 0) is_last = is_last_part(parts.stored + own.group, plan.parts);
        __syncthreads();
        if (!is_last) continue;
        value = used ? add_parts(r, plan, own.output, own.lane, parts.results) : r.zero();
        join_columns(r, plan, own.lane, value, values);
        if (own.lane == 0 && used) r.finish(own.output, value);
    }
}

/// Jobs of `lanes` lanes: a warp's or a block's. CUB or R joins lanes in a fixed order.
template <int lanes, class R>
__global__ void __launch_bounds__(block_threads, resident_blocks<R>)
    reduce_jobs(R r, ReducePlan plan, Parts<typename R::Value> parts) {
    using Value = typename R::Value;
    constexpr bool alone = lanes == block_threads;  // one job a block
    using Joined = std::conditional_t<alone, cub::BlockReduce<Value, block_threads>, cub::WarpReduce<Value>>;
    constexpr int jobs_per_block = block_threads / lanes;
    __shared__ typename Joined::TempStorage memory[jobs_per_block];
    __shared__ bool is_last[jobs_per_block];
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const int slot = static_cast<int>(threadIdx.x) / lanes;
    const auto join = [&r](const Value& a, const Value& b) {
        Value both = a;
        r.join(both, b);
        return both;
    };
    const auto join_lanes = [&](const Value& own) {
        if constexpr (requires { r.joined(own, RowGroup<lanes, 1, 1, false>()); })
            return r.joined(own, RowGroup<lanes, 1, 1, false>());
        else
            return Joined(memory[slot]).Reduce(own, join);
    };
    const auto synchronize = [] {
        if constexpr (alone)
            __syncthreads();
        else
            __syncwarp();
    };
    const std::int64_t jobs = plan.outputs * plan.parts;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * jobs_per_block;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * jobs_per_block; first < jobs; first += step) {
        const std::int64_t job = first + slot;
        const std::int64_t part = plan.parts == 1 ? 0 : job / plan.outputs, output = job - part * plan.outputs;
        const Value own = job < jobs ? add_lane(r, plan, output, part, lane) : r.zero();
        const Value all = join_lanes(own);  // valid in lane 0
        if (lane == 0 && job < jobs) finish_job(r, plan, job, all, parts);
        if (plan.parts > 1) {
            if (lane == 0) is_last[slot] = job < jobs && is_last_part(parts.stored + output, plan.parts);
            synchronize();
            if (is_last[slot]) {
                const Value of_part = add_parts(r, plan, output, lane, parts.results);
                const Value joined = join_lanes(of_part);
                if (lane == 0) r.finish(output, joined);
            }
        }
        __syncthreads();  // the memory is reused
    }
}
#else
/// Enqueues all jobs of a plan and the join of their parts.
template <class R>
void enqueue_host_reduction(const Queue& queue, const char* name, const ReducePlan& plan, const R& r,
                            const Parts<typename R::Value>& parts) {
    const auto join_lanes = [r, lanes = plan.lanes](auto of_lane) {
        typename R::Value value = r.zero();
        for (int lane = 0; lane < lanes; ++lane) r.join(value, of_lane(lane));
        return value;
    };
    const auto loop = [r, plan, parts, join_lanes] {
        for (std::int64_t job = 0; job < plan.jobs(); ++job)
            finish_job(r, plan, job, join_lanes([&](int lane) { return add_lane(r, plan, job, lane); }), parts);
        if (plan.parts == 1) return;
        for (std::int64_t output = 0; output < plan.outputs; ++output)
            r.finish(output, join_lanes([&](int lane) { return add_parts(r, plan, output, lane, parts.results); }));
    };
    check(enqueue_host_twin(queue, name, loop), name);
}
#endif

/// Enqueues a plan. No kernels are compiled for plans that R never has.
template <class R>
void enqueue_reduction(const Queue& queue, const char* name, const ReducePlan& plan, const R& r,
                       const Parts<typename R::Value>& parts) {
    if constexpr (!HasPlans<R, LongColumns>)
        if (plan.lanes == 1 && plan.parts == 1) return launch(queue, name, plan.outputs, ReduceAlone<R>{r, plan});
#if defined(__CUDACC__)
    const auto launch_jobs = [&](auto kernel, unsigned blocks) {
        launch_blocks(queue, name, blocks, kernel, R(r), ReducePlan(plan), Parts<typename R::Value>(parts));
    };
    if constexpr (!HasPlans<R, NoColumns>)
        if (plan.columns > 0) return launch_jobs(reduce_columns<R>, blocks_for(plan.column_blocks(), 1));
    if constexpr (!HasPlans<R, OnlyColumns> && !HasPlans<R, LongColumns>) {
        constexpr int warp = ReducePlan::warp_threads;
        if (plan.lanes == block_threads)
            launch_jobs(reduce_jobs<block_threads, R>, blocks_for(plan.jobs(), 1));
        else
            launch_jobs(reduce_jobs<warp, R>, blocks_for(plan.jobs(), block_threads / warp));
    }
#else
    enqueue_host_reduction(queue, name, plan, r, parts);
#endif
}

/// The memory of a kernel and the counters of its stream.
class WithCounters final : public Declaration {
public:
    explicit WithCounters(const Queue& queue) : queue_(queue), counters_(counters_of(queue.stream)) {}
    Queue queue() const { return {queue_.stream, this}; }
    unsigned* counters() const { return counters_; }
    void list(std::vector<Touched>& all) const override {
        if (queue_.declaration != nullptr) queue_.declaration->list(all);
        all.push_back({counters_, stream_counters * sizeof(unsigned), true});
    }

private:
    Queue queue_;
    unsigned* counters_;
};

/// Enqueues the reduction. `scratch`: plan.scratch_bytes<R>() bytes.
template <class R>
void reduce(const Queue& queue, const char* name, const ReducePlan& plan, const R& r, void* scratch) {
    using Value = typename R::Value;
    if (plan.outputs <= 0) return;
    if (plan.parts == 1) return enqueue_reduction(queue, name, plan, r, Parts<Value>{});
    const WithCounters with(queue);
    enqueue_reduction(with.queue(), name, plan, r, Parts<Value>{static_cast<Value*>(scratch), with.counters()});
}

}  // namespace lockstep::cuda
