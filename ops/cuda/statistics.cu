// Inspection of a tensor's values.
#include "lockstep/ops/internal/tensor_operations.h"

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/reduce.h"

namespace lockstep::cuda {

namespace {

template <class T>
struct IsFiniteElement {
    StridedIndex<2> index;  // y, x
    bool* y;
    const T* x;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        const T value = x[at.of[1]];
        y[at.of[0]] = value - value == T(0);
    }
};

template <class T>
struct SummarizeValues {
    using Plans = NoColumns;
    using Value = ValueSummary;
    StridedIndex<1> index;
    const T* x;
    ValueSummary* summary;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add(Value& all, std::int64_t, std::int64_t i) const {
        element::add_value(all, static_cast<double>(x[index(i).of[0]]));
    }
    LOCKSTEP_HD_INLINE void join(Value& all, const Value& other) const { element::join_values(all, other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& all) const { *summary = all; }
};

struct ClearCount {
    std::int64_t* counts;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const { counts[i] = 0; }
};

/// Sums of integers do not depend on the order: atomic additions are deterministic here.
template <class T>
struct CountElement {
    StridedIndex<1> index;
    const T* x;
    const double* edges;
    std::int64_t* counts;
    std::int64_t bins;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t bin = element::bin_of(edges, bins, static_cast<double>(x[index(i).of[0]]));
        if (bin < 0) return;
#if defined(__CUDA_ARCH__)
        atomicAdd(reinterpret_cast<unsigned long long*>(counts + bin), 1ULL);
#else
        ++counts[bin];
#endif
    }
};

KernelPtr make_isfinite(const IsFinite& op, KernelRequest& request) {
    const TensorMeta &x = request.in[0], &y = request.out[0];
    const Shape strides[] = {y.strides, x.strides};
    const StridedIndex<2> index = make_index(x.shape, strides, Order::memory);
    return visit_float(op.name, x.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [index](const Queue& queue, const KernelArgs& v) {
            launch(queue, "isfinite", index.count, IsFiniteElement<T>{index, v.output<bool>(0), v.input<T>(0)});
        });
    });
}

KernelPtr make_histogram(const CountInBins& op, KernelRequest& request) {
    request.want_contiguous(1);
    const TensorMeta& x = request.in[0];
    const Shape strides[] = {x.strides};
    const StridedIndex<1> index = make_index(x.shape, strides, Order::logical);
    const ReducePlan plan = ReducePlan::make(1, x.numel(), false);
    const std::int64_t bins = request.out[0].numel();
    return visit_float(op.name, x.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [index, plan, bins](const Queue& queue, const KernelArgs& v) {
                const T* values = v.input<T>(0);
                launch(queue, "histogram_clear", bins, ClearCount{v.output<std::int64_t>(0)});
                launch(queue, "histogram_count", index.count,
                       CountElement<T>{index, values, v.input<double>(1), v.output<std::int64_t>(0), bins});
                reduce(queue, "histogram_summary", plan, SummarizeValues<T>{index, values, v.output<ValueSummary>(1)},
                       v.scratch);
            },
            plan.scratch_bytes<SummarizeValues<T>>());
    });
}

}  // namespace

void add_statistics_kernels(KernelTable& table) {
    table.add<IsFinite, make_isfinite>();
    table.add<CountInBins, make_histogram>();
}

}  // namespace lockstep::cuda
