// Sums and the largest element.
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/split.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

// ---- sums -------------------------------------------------------------------------------------------------------

template <class T>
struct SumElements {
    using Value = SumOf<UpcastType<T>>;
    StridedIndex<2> kept;  // x, y
    StridedIndex<1> reduced;
    const T* x;
    T* y;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& sum, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        const T* const from = x + kept(output).of[0];
        if (reduced.dims > 1) {
            for (std::int64_t k = first; k < end; k += step) sum.add(upcast(from[reduced(k).of[0]]));
            return;
        }
        const std::int64_t stride = reduced.dims == 1 ? reduced.strides[0][0] : 0;
        LOCKSTEP_UNROLL_4
        for (std::int64_t k = first; k < end; k += step) sum.add(upcast(from[k * stride]));
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum.add(other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& sum) const {
        y[kept(output).of[1]] = CastTo<T>::from(sum.value());
    }
};

template <class T>
KernelPtr sum_kernel(const Sum& op, KernelRequest& request) {
    const Split split = split_dims(request.in[0], op.dims);
    Shape y_strides;
    for (int d = 0; d < request.in[0].shape.dims(); ++d)
        if ((op.dims >> d & 1u) == 0) y_strides.push_back(request.out[0].strides[d]);
    const ReducePlan plan = plan_of(split);
    // In the order of memory: adjacent threads read adjacent elements.
    const Shape kept[] = {split.kept_strides, y_strides}, reduced[] = {split.reduced_strides};
    const SumElements<T> functor{make_index(split.kept, kept, Order::memory),
                                 make_index(split.reduced, reduced, Order::memory), nullptr, nullptr};
    return make_cuda_kernel(
        request,
        [functor, plan](const Queue& queue, const KernelArgs& v) {
            SumElements<T> bound = functor;
            bound.x = v.input<T>(0);
            bound.y = v.output<T>(0);
            reduce(queue, "sum", plan, bound, v.scratch);
        },
        plan.scratch_bytes<SumElements<T>>());
}

template <class T>
struct SumSquaredError {
    using Value = SumOf<T>;
    StridedIndex<2> index;  // a, b
    const T* a;
    const T* b;
    T* y;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add(Value& sum, std::int64_t, std::int64_t k) const {
        const auto at = index(k);
        const T difference = a[at.of[0]] - b[at.of[1]];
        sum.add(difference * difference);
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum.add(other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& sum) const { *y = sum.value(); }
};

// ---- the largest ------------------------------------------------------------------------------------------------

template <class T>
struct Largest {
    T value;
    std::int64_t where;  // -1: none yet
};

template <class Stored>
struct FindLargest {
    using Value = Largest<UpcastType<Stored>>;
    StridedIndex<2> kept;  // x, y
    std::int64_t stride;
    const Stored* x;
    std::int64_t* y;

    LOCKSTEP_HD_INLINE Value zero() const { return {0, -1}; }
    LOCKSTEP_HD_INLINE const Stored* begin(std::int64_t output) const { return x + kept(output).of[0]; }
    LOCKSTEP_HD_INLINE void add(Value& best, const Stored* from, std::int64_t k) const {
        join(best, {upcast(from[k * stride]), k});
    }
    /// The first of equal elements, regardless of the order of evaluation; NaN is larger than everything, as in
    /// PyTorch.
    LOCKSTEP_HD_INLINE void join(Value& best, const Value& other) const {
        if (other.where < 0) return;
        const bool best_nan = best.value != best.value;
        const bool other_nan = other.value != other.value;
        const bool equal = best_nan ? other_nan : other.value == best.value;
        const bool larger = !best_nan && (other_nan || other.value > best.value);
        if (best.where < 0 || larger || (equal && other.where < best.where)) best = other;
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& best) const { y[kept(output).of[1]] = best.where; }
};

KernelPtr make_sum(const Sum& op, KernelRequest& request) {
    switch (request.in[0].dtype) {
        case DType::f32: return sum_kernel<float>(op, request);
        case DType::f64: return sum_kernel<double>(op, request);
        case DType::f16: return sum_kernel<Half>(op, request);
        case DType::bf16: return sum_kernel<BFloat16>(op, request);
        case DType::i32: return sum_kernel<std::int32_t>(op, request);
        case DType::i64: return sum_kernel<std::int64_t>(op, request);
        default: refuse_dtype(op.name, request.in[0].dtype);
    }
}

KernelPtr make_squared_error_forward(const SquaredErrorForward& op, KernelRequest& request) {
    const TensorMeta& a = request.in[0];
    const Shape strides[] = {a.strides, request.in[1].strides};
    const StridedIndex<2> index = make_index(a.shape, strides, Order::memory);
    const ReducePlan plan = ReducePlan::make(1, a.numel(), false);
    return visit_float(op.name, a.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [index, plan](const Queue& queue, const KernelArgs& v) {
                reduce(queue, "squared_error", plan,
                       SumSquaredError<T>{index, v.input<T>(0), v.input<T>(1), v.output<T>(0)}, v.scratch);
            },
            plan.scratch_bytes<SumSquaredError<T>>());
    });
}

KernelPtr make_argmax(const ArgMax& op, KernelRequest& request) {
    const TensorMeta& x = request.in[0];
    const Split split = split_dims(x, 1u << op.dim);
    const ReducePlan plan = plan_of(split);
    Shape y_strides;
    for (int d = 0; d < x.shape.dims(); ++d)
        if (d != op.dim) y_strides.push_back(request.out[0].strides[d]);
    const Shape strides[] = {split.kept_strides, y_strides};
    const StridedIndex<2> kept = make_index(split.kept, strides, Order::memory);
    return visit_any_float(op.name, x.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [kept, plan, stride = x.strides[op.dim]](const Queue& queue, const KernelArgs& v) {
                reduce(queue, "argmax", plan, FindLargest<T>{kept, stride, v.input<T>(0), v.output<std::int64_t>(0)},
                       v.scratch);
            },
            plan.scratch_bytes<FindLargest<T>>());
    });
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
    table.add<Sum, make_sum>();
    table.add<ArgMax, make_argmax>();
    table.add<SquaredErrorForward, make_squared_error_forward>();
    table.add_half_types<Sum, make_for_one_dtype<Sum, make_sum>>();
    table.add_half_types<ArgMax, make_argmax>();
}

}  // namespace lockstep::cuda
