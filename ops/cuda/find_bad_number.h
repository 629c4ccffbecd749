// The check of numbers that name classes or elements.
#pragma once

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/report.h"

namespace lockstep::cuda {

/// Reports the first number that is not in [0, size), or the first divisor that is 0.
struct FindBadNumber {
    using Plans = NoColumns;
    using Value = std::int64_t;  // its position; -1 if there is no such number
    StridedIndex<1> index;
    std::int64_t size, per_row;  // per_row: numbers in a row
    bool batch;                  // rows are those of the batch
    bool divisors;               // 0 is bad, and nothing else
    StatusCode code;
    const std::int64_t* x;
    std::int64_t first_row;
    StatusWord* status;
    const StepCounters* step;
    int shard;

    LOCKSTEP_HD_INLINE Value zero() const { return -1; }
    LOCKSTEP_HD_INLINE void add(Value& bad, std::int64_t, std::int64_t i) const {
        const std::int64_t number = x[index(i).of[0]];
        if (divisors ? number == 0 : number < 0 || number >= size) join(bad, i);
    }
    LOCKSTEP_HD_INLINE void join(Value& bad, const Value& other) const {
        if (other >= 0 && (bad < 0 || other < bad)) bad = other;
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& bad) const {
        if (bad >= 0) report(status, code, shard, step, (batch ? first_row : 0) + bad / per_row, x[index(bad).of[0]]);
    }
};

/// Enqueues the check of the numbers at `x`. The plan has one output; the scratch memory of the call is used.
inline void find_bad_number(const Queue& queue, const char* name, const ReducePlan& plan, FindBadNumber find,
                            const std::int64_t* x, const KernelArgs& call) {
    find.x = x;
    find.first_row = call.first_row;
    find.status = call.status;
    find.step = call.step;
    find.shard = call.shard;
    reduce(queue, name, plan, find, call.scratch);
}

}  // namespace lockstep::cuda
