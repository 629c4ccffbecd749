// Reductions whose order of summation is fixed by the shape: a block adds with so many lanes, lanes are joined in a
// tree, and long reductions are cut in parts that a second kernel joins in order. No atomics.
#pragma once

#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/internal/arithmetic.h"

namespace lockstep::cuda {

/// `outputs` results of `count` elements each.
struct ReducePlan {
    std::int64_t outputs = 0, count = 0;
    int lanes = 1;        ///< partial results side by side; a power of two, at most block_threads
    int parts = 1;        ///< pieces of the elements
    bool across = false;  ///< neighbouring outputs, not neighbouring elements, are neighbours in memory

    /// Lanes and parts for a shape.
    static ReducePlan make(std::int64_t outputs, std::int64_t count, bool across) {
        ReducePlan plan{outputs, count, 8, 1, across};
        while (!across && plan.lanes < block_threads && plan.lanes * 16 < count) plan.lanes *= 2;
        const std::int64_t threads = std::int64_t{1} << 17;  // enough for every GPU there is
        const std::int64_t useful = count / (plan.lanes * 16);
        const std::int64_t wanted = threads / std::max<std::int64_t>(1, outputs * plan.lanes);
        plan.parts = static_cast<int>(std::clamp<std::int64_t>(std::min(useful, wanted), 1, 256));
        return plan;
    }
    std::int64_t jobs() const { return outputs * parts; }
    template <class R>
    std::size_t scratch_bytes() const {
        return parts > 1 ? static_cast<std::size_t>(jobs()) * sizeof(typename R::Value) : 0;
    }
};

/// What one lane adds up. R offers
///   Value                                       what is accumulated
///   Value zero() const
///   void add(Value&, output, element) const     takes one element in
///   void join(Value&, const Value&) const       takes in what comes later in order
///   void finish(output, const Value&) const     stores the result
template <class R>
LOCKSTEP_ELEMENT typename R::Value add_lane(const R& r, const ReducePlan& plan, std::int64_t job, int lane) {
    const std::int64_t output = job % plan.outputs;
    const std::int64_t part = job / plan.outputs;
    const std::int64_t length = (plan.count + plan.parts - 1) / plan.parts;
    const std::int64_t end = (part + 1) * length < plan.count ? (part + 1) * length : plan.count;
    typename R::Value value = r.zero();
    for (std::int64_t k = part * length + lane; k < end; k += plan.lanes) r.add(value, output, k);
    return value;
}

/// Stores what a job came to: as the result where there is one part.
template <class R>
LOCKSTEP_ELEMENT void finish_job(const R& r, const ReducePlan& plan, std::int64_t job, const typename R::Value& value,
                                 typename R::Value* partial) {
    if (plan.parts > 1)
        partial[job] = value;
    else
        r.finish(job, value);
}

#if defined(__CUDACC__)
template <class R>
__global__ void __launch_bounds__(block_threads) reduce_blocks(R r, ReducePlan plan, typename R::Value* partial) {
    using Value = typename R::Value;
    __shared__ alignas(Value) unsigned char memory[sizeof(Value) * block_threads];
    Value* shared = reinterpret_cast<Value*>(memory);
    const int thread = static_cast<int>(threadIdx.x);
    const int jobs_per_block = block_threads / plan.lanes;
    const int lane = plan.across ? thread / jobs_per_block : thread % plan.lanes;
    const int slot = plan.across ? thread % jobs_per_block : thread / plan.lanes;
    const int next_lane = plan.across ? jobs_per_block : 1;
    const std::int64_t jobs = plan.outputs * plan.parts;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * jobs_per_block;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * jobs_per_block; first < jobs; first += step) {
        const std::int64_t job = first + slot;
        if (job < jobs) shared[thread] = add_lane(r, plan, job, lane);
        __syncthreads();
        for (int half = plan.lanes / 2; half > 0; half /= 2) {
            if (lane < half && job < jobs) r.join(shared[thread], shared[thread + half * next_lane]);
            __syncthreads();
        }
        if (lane == 0 && job < jobs) finish_job(r, plan, job, shared[thread], partial);
        __syncthreads();
    }
}
#endif

template <class R>
struct JoinParts {
    R r;
    ReducePlan plan;
    const typename R::Value* partial;
    LOCKSTEP_ELEMENT void operator()(std::int64_t output) const {
        typename R::Value value = partial[output];
        for (int part = 1; part < plan.parts; ++part) r.join(value, partial[part * plan.outputs + output]);
        r.finish(output, value);
    }
};

/// Enqueues the reduction. `scratch`: plan.scratch_bytes<R>() bytes.
template <class R>
void reduce(const Queue& queue, const char* name, const ReducePlan& plan, R r, void* scratch) {
    if (plan.outputs <= 0) return;
    auto* partial = static_cast<typename R::Value*>(scratch);
#if defined(__CUDACC__)
    const int jobs_per_block = block_threads / plan.lanes;
    const auto blocks =
        static_cast<unsigned>(std::min<std::int64_t>((plan.jobs() + jobs_per_block - 1) / jobs_per_block, 16384));
    reduce_blocks<<<blocks, block_threads, 0, queue.stream>>>(r, plan, partial);
    check(cudaGetLastError(), name);
#else
    const auto loop = [r, plan, partial] {
        typename R::Value lanes[block_threads];
        for (std::int64_t job = 0; job < plan.jobs(); ++job) {
            for (int lane = 0; lane < plan.lanes; ++lane) lanes[lane] = add_lane(r, plan, job, lane);
            for (int half = plan.lanes / 2; half > 0; half /= 2)
                for (int lane = 0; lane < half; ++lane) r.join(lanes[lane], lanes[lane + half]);
            finish_job(r, plan, job, lanes[0], partial);
        }
    };
    check(enqueue_host_twin(queue.stream, name, loop, queue.touched), name);
#endif
    if (plan.parts > 1) launch(queue, name, plan.outputs, JoinParts<R>{r, plan, partial});
}

}  // namespace lockstep::cuda
