#include "lockstep/tests/cuda_standin/launches.h"

#include <vector>

#include "lockstep/ops/cuda/reduce.h"

namespace {

using namespace lockstep::cuda;

struct AddOne {
    int* to;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const { to[i] += 1; }
};

struct Sums {
    using Value = double;
    const float* from;
    std::int64_t elements;
    float* to;
    LOCKSTEP_HD_INLINE Value zero() const { return 0; }
    LOCKSTEP_HD_INLINE void add(Value& sum, std::int64_t output, std::int64_t k) const {
        sum += from[output * elements + k];
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum += other; }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& sum) const {
        to[output] = static_cast<float>(sum);
    }
};

}  // namespace

void launch_elements(cudaStream_t stream) { launch({stream, {}}, "add_one", 1000, AddOne{nullptr}); }

void launch_sums(cudaStream_t stream, long outputs, long elements, bool across) {
    const ReducePlan plan = ReducePlan::make(outputs, elements, across);
    reduce({stream, {}}, "sums", plan, Sums{nullptr, elements, nullptr}, nullptr);
}
