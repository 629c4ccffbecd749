// A sum by the library's block-wide reduction. It is compiled with the library's header and with faulty copies of it.
#include "lockstep/ops/cuda/reduce.h"

struct Sum {
    using Value = double;
    const float* x;
    float* y;
    std::int64_t count;

    LOCKSTEP_HD_INLINE Value zero() const { return 0; }
    LOCKSTEP_HD_INLINE void add(Value& sum, std::int64_t output, std::int64_t k) const {
        sum += static_cast<double>(x[output * count + k]);
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum += other; }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& sum) const { y[output] = static_cast<float>(sum); }
};

template __global__ void lockstep::cuda::reduce_jobs<lockstep::cuda::block_threads, Sum>(Sum, ReducePlan,
                                                                                         lockstep::cuda::Parts<double>);
