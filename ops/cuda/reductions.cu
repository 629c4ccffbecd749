// Sums, and the largest and smallest elements.
#include <limits>

#include "lockstep/ops/cuda/batch.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/split.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/selection_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

// ---- sums -------------------------------------------------------------------------------------------------------

/// `across`: packs of adjacent sums rather than of adjacent elements of a sum.
template <class T, int width, bool across>
struct SumElements {
    using Plans = std::conditional_t<width == 1, AnyPlan, std::conditional_t<across, OnlyColumns, NoColumns>>;
    static constexpr int sums = across ? width : 1;                              // in a pack
    static constexpr int at_once = width > 1 && width * sizeof(T) < 16 ? 8 : 4;  // loads in flight
    static constexpr bool rows_of_packs = width > 1 && across;                   // at one distance from each other
    static constexpr int resident_blocks = sizeof(T) == 2 && sums < width ? 3 : width == 1 && sizeof(T) == 8 ? 4 : 0;
    struct alignas(sums % 4 == 0 ? 16 : alignof(SumOf<UpcastType<T>>)) Value {
        SumOf<UpcastType<T>> of[sums];
    };
    StridedIndex<2> kept;     // first elements of x and of y
    StridedIndex<1> reduced;  // first elements of x
    std::int64_t y_step;      // from a sum of a pack to the next
    PackedInput<T, width> x;
    T* y;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        const PackedInput<T, width> from{x.data + kept(output).of[0], x.aligned};
        const auto use = [&](const Pack<T, width>& pack, std::int64_t) {
            UpcastType<T> terms[width];
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j) terms[j] = upcast(pack.of[j]);
            if constexpr (sums == 1 && width > 1 && sizeof(T) == 2) {  // sequences add wider terms one by one as well
                value.of[0].add(sum_in_pairs(terms));
            } else {
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) value.of[across ? j : 0].add(terms[j]);
            }
        };
        if (!rows_of_packs && reduced.dims > 1) {
            for_loaded<at_once>(
                first, end, step, [&](std::int64_t k) { return from.at(reduced(k).of[0]); }, use);
            return;
        }
        const std::int64_t stride = reduced.dims == 1 ? reduced.strides[0][0] : 0;
        for_loaded<at_once>(
            first, end, step, [&](std::int64_t k) { return from.at(k * stride); }, use);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        for (int j = 0; j < sums; ++j) value.of[j].add(other.of[j]);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& value) const {
        T* const to = y + kept(output).of[1];
        for (int j = 0; j < sums; ++j) to[j * y_step] = CastTo<T>::from(value.of[j].value());
    }
};

/// Makes packs of `width` adjacent elements of tensor 0 the elements of a walk. False if they cannot begin at each of
/// its steps and of those of `other`.
bool make_packs(Walk& walk, int tensors, const Walk& other, int width) {
    const int inner = walk.sizes.dims() - 1;
    if (inner < 0 || walk.strides[0][inner] != 1 || walk.sizes[inner] % width != 0) return false;
    for (int d = 0; d < inner; ++d)
        if (walk.strides[0][d] % width != 0) return false;
    for (const std::int64_t stride : other.strides[0])
        if (stride % width != 0) return false;
    walk.sizes[inner] /= width;
    for (int t = 0; t < tensors; ++t) walk.strides[t][inner] *= width;
    return true;
}

template <class T, int width, bool across>
KernelPtr sum_of_packs(const KernelRequest& request, const SumElements<T, width, across>& functor,
                       const ReducePlan& plan) {
    using Elements = SumElements<T, width, across>;
    return make_cuda_kernel(
        request,
        [functor, plan](const Queue& queue, const KernelArgs& v) {
            Elements bound = functor;
            bound.x = packed_input<width>(v.input<T>(0));
            bound.y = v.output<T>(0);
            reduce(queue, "sum", plan, bound, v.scratch);
        },
        plan.scratch_bytes<Elements>());
}

template <class T>
KernelPtr sum_kernel(const Sum& op, KernelRequest& request) {
    const Split split = split_dims(request.in[0], op.dims);
    Shape y_strides;
    for (int d = 0; d < request.in[0].shape.dims(); ++d)
        if ((op.dims >> d & 1u) == 0) y_strides.push_back(request.out[0].strides[d]);
    // In the order of memory: adjacent threads read adjacent elements.
    Walk kept = make_walk(split.kept, {split.kept_strides, y_strides}, Order::memory);
    Walk reduced = make_walk(split.reduced, {split.reduced_strides}, Order::memory);
    const auto made = [&](auto width, auto across) {
        constexpr int wide = decltype(width)::value;
        const ReducePlan plan = ReducePlan::make(kept.sizes.numel(), reduced.sizes.numel(), split.across,
                                                 decltype(across)::value ? 1 : wide);
        const std::int64_t y_step = kept.sizes.empty() ? 0 : kept.strides[1][kept.sizes.dims() - 1] / wide;
        return sum_of_packs<T, wide, decltype(across)::value>(
            request, {strided_index<2>(kept), strided_index<1>(reduced), y_step, {}, nullptr}, plan);
    };
    if constexpr (sizeof(T) <= 4 && !std::is_integral_v<T>) {
        using Wide = std::integral_constant<int, widest<T>>;
        using Four = std::integral_constant<int, 4>;  // sums of more would leave registers for few threads
        if (split.across && reduced.sizes.dims() <= 1 && make_packs(kept, 2, reduced, Four()))
            return made(Four(), std::true_type());
        if (!split.across && make_packs(reduced, 1, kept, Wide())) return made(Wide(), std::false_type());
    }
    return made(std::integral_constant<int, 1>(), std::false_type());
}

/// Packs of dense tensors. `width` 1: elements of tensors with any strides.
template <class T, int width>
struct SumSquaredError {
    using Plans = NoColumns;
    static constexpr int at_once = sizeof(T) < 4 ? 2 : 4;  // loads of each tensor in flight
    using Value = SumOf<UpcastType<T>>;
    StridedIndex<2> index;  // a, b
    PackedInput<T, width> a, b;
    T* y;

    struct Packs {
        Pack<T, width> a, b;
    };
    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& sum, std::int64_t, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        for_loaded<at_once>(
            first, end, step,
            [&](std::int64_t k) {
                if constexpr (width > 1) return Packs{a.load(k), b.load(k)};
                const auto at = index(k);
                return Packs{a.at(at.of[0]), b.at(at.of[1])};
            },
            [&](const Packs& packs, std::int64_t) {
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) {
                    const auto difference = upcast(packs.a.of[j]) - upcast(packs.b.of[j]);
                    sum.add(difference * difference);
                }
            });
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum.add(other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& sum) const { *y = CastTo<T>::from(sum.value()); }
};

// ---- the largest ------------------------------------------------------------------------------------------------

template <class T>
struct Largest {
    T value;
    std::int64_t where;  // -1: none yet
};

template <class Stored, int width>
struct FindLargest {
    using Plans = std::conditional_t<width == 1, AnyPlan, NoColumns>;
    static constexpr int at_once = sizeof(Stored) * width < 16 ? 8 : 4;  // loads in flight
    static constexpr int resident_blocks = width == 1 ? 4 : 0;
    using T = UpcastType<Stored>;
    using Value = Largest<T>;
    StridedIndex<2> kept;  // x, y
    std::int64_t stride;   // from a pack to the next, in packs
    PackedInput<Stored, width> x;
    std::int64_t* y;

    LOCKSTEP_HD_INLINE Value zero() const { return {0, -1}; }
    LOCKSTEP_HD_INLINE void add_all(Value& best, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        const PackedInput<Stored, width> from{x.data + kept(output).of[0], x.aligned};
        for_loaded<at_once>(
            first, end, step, [&](std::int64_t k) { return from.load(k * stride); },
            [&](const Pack<Stored, width>& pack, std::int64_t k) {
                // In pairs, which takes fewer instructions than one by one; the first of equal elements.
                T values[width];
                int places[width];
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) {
                    values[j] = upcast(pack.of[j]);
                    places[j] = j;
                }
                LOCKSTEP_UNROLL
                for (int apart = 1; apart < width; apart *= 2) {
                    LOCKSTEP_UNROLL
                    for (int j = 0; j + apart < width; j += 2 * apart) {
                        if (!exceeds(values[j + apart], values[j])) continue;
                        values[j] = values[j + apart];
                        places[j] = places[j + apart];
                    }
                }
                if (best.where < 0 || exceeds(values[0], best.value)) best = {values[0], k * width + places[0]};
            });
    }
    /// NaN exceeds everything but NaN.
    static LOCKSTEP_HD_INLINE bool exceeds(T a, T b) { return !(a <= b) && b == b; }
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
    /// The join of all lanes: their largest value, and the first of its places.
    template <class Group>
    LOCKSTEP_ROW_FUNCTION Value joined(const Value& own, const Group& group) const {
        constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
        constexpr T least = std::is_integral_v<T> ? std::numeric_limits<T>::min() : -std::numeric_limits<T>::infinity();
        const T value = group.joined(own.where < 0 ? least : own.value, [](T a, T b) { return exceeds(b, a) ? b : a; });
        const bool has_it = own.where >= 0 && !exceeds(value, own.value);
        const auto earlier = [](std::int64_t a, std::int64_t b) { return a < b ? a : b; };
        const std::int64_t where = group.joined(has_it ? own.where : none, earlier);
        return {value, where == none ? -1 : where};
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& best) const { y[kept(output).of[1]] = best.where; }
};

/// The largest element, or the smallest; NaN if there is one.
template <class Stored, int width>
struct FindExtreme {
    using Plans = std::conditional_t<width == 1, AnyPlan, NoColumns>;
    static constexpr int at_once = sizeof(Stored) * width < 16 ? 8 : 4;  // loads in flight
    static constexpr int resident_blocks = sizeof(Stored) == 8 ? 4 : 0;
    using T = UpcastType<Stored>;
    struct Value {
        T best;
        int count;  // 0 before the first element
    };
    StridedIndex<2> kept;  // x, y
    std::int64_t stride;   // from a pack to the next, in packs
    PackedInput<Stored, width> x;
    Stored* y;
    bool smallest;

    LOCKSTEP_HD_INLINE Value zero() const { return {T(0), 0}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t output, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        const PackedInput<Stored, width> from{x.data + kept(output).of[0], x.aligned};
        for_loaded<at_once>(
            first, end, step, [&](std::int64_t k) { return from.load(k * stride); },
            [&](const Pack<Stored, width>& pack, std::int64_t) {
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) join(value, {upcast(pack.of[j]), 1});
            });
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        if (other.count == 0) return;
        value.best = value.count == 0 ? other.best
                     : smallest       ? functor::Minimum().value(value.best, other.best)
                                      : functor::Maximum().value(value.best, other.best);
        value.count = 1;
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& value) const {
        y[kept(output).of[1]] = CastTo<Stored>::from(value.best);
    }
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
    const bool dense = index.dims == 0 || (index.dims == 1 && index.strides[0][0] == 1 && index.strides[1][0] == 1);
    return visit_any_float(op.name, a.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto made = [&](auto width) {
            constexpr int wide = decltype(width)::value;
            using Error = SumSquaredError<T, wide>;
            const ReducePlan plan = ReducePlan::make(1, index.count / wide, false, wide);
            return make_cuda_kernel(
                request,
                [index, plan](const Queue& queue, const KernelArgs& v) {
                    reduce(queue, "squared_error", plan,
                           Error{index, packed_input<wide>(v.input<T>(0)), packed_input<wide>(v.input<T>(1)),
                                 v.output<T>(0)},
                           v.scratch);
                },
                plan.template scratch_bytes<Error>());
        };
        constexpr int wide = widest<T>;
        return dense && index.count % wide == 0 ? made(std::integral_constant<int, wide>())
                                                : made(std::integral_constant<int, 1>());
    });
}

/// Null if the dtypes differ, including those of scalars.
KernelPtr make_half_squared_error_forward(const SquaredErrorForward& op, KernelRequest& request) {
    const bool alike = request.in[0].dtype == request.in[1].dtype && request.in[0].dtype == request.out[0].dtype;
    return alike ? make_squared_error_forward(op, request) : nullptr;
}

/// Kernel of a reduction of x along one dimension. `make_kernel(walk of the outputs, width, stride of packs, plan)`:
/// the kernel for packs of `width` elements of type T.
template <class T, class Make>
KernelPtr make_along(const KernelRequest& request, int dim, const Make& make) {
    const TensorMeta& x = request.in[0];
    const Split split = split_dims(x, 1u << dim);
    Shape y_strides;
    for (int d = 0; d < x.shape.dims(); ++d)
        if (d != dim) y_strides.push_back(request.out[0].strides[d]);
    const Walk kept = make_walk(split.kept, {split.kept_strides, y_strides}, Order::memory);
    const auto made = [&](auto width, std::int64_t stride) {
        constexpr int wide = decltype(width)::value;
        const ReducePlan plan =
            ReducePlan::make(split.kept.numel(), split.reduced.numel() / wide, wide == 1 && split.across, wide);
        return make(width, strided_index<2>(kept), stride, plan);
    };
    constexpr int wide = widest<T>;
    Walk reduced = make_walk(split.reduced, {split.reduced_strides}, Order::memory);
    return !split.across && make_packs(reduced, 1, kept, wide)
               ? made(std::integral_constant<int, wide>(), std::int64_t{1})
               : made(std::integral_constant<int, 1>(), x.strides[dim]);
}

/// Calls visit for floats and i64.
template <class Visit>
KernelPtr visit_ordered(const char* name, DType dtype, const Visit& visit) {
    return dtype == DType::i64 ? visit(std::int64_t{}) : visit_any_float(name, dtype, visit);
}

KernelPtr make_argmax(const ArgMax& op, KernelRequest& request) {
    return visit_ordered(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_along<T>(
            request, op.dim, [&](auto width, const auto& index, std::int64_t stride, const ReducePlan& plan) {
                constexpr int wide = decltype(width)::value;
                using Find = FindLargest<T, wide>;
                return make_cuda_kernel(
                    request,
                    [index, plan, stride](const Queue& queue, const KernelArgs& v) {
                        reduce(queue, "argmax", plan,
                               Find{index, stride, packed_input<wide>(v.input<T>(0)), v.output<std::int64_t>(0)},
                               v.scratch);
                    },
                    plan.template scratch_bytes<Find>());
            });
    });
}

KernelPtr make_extreme(const Extreme& op, KernelRequest& request) {
    return visit_ordered(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_along<T>(
            request, op.dim, [&](auto width, const auto& index, std::int64_t stride, const ReducePlan& plan) {
                constexpr int wide = decltype(width)::value;
                using Find = FindExtreme<T, wide>;
                return make_cuda_kernel(
                    request,
                    [index, plan, stride, smallest = op.smallest](const Queue& queue, const KernelArgs& v) {
                        reduce(queue, "extreme", plan,
                               Find{index, stride, packed_input<wide>(v.input<T>(0)), v.output<T>(0), smallest},
                               v.scratch);
                    },
                    plan.template scratch_bytes<Find>());
            });
    });
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
    table.add<Sum, make_sum>();
    table.add<ArgMax, make_argmax>();
    table.add<Extreme, make_extreme>();
    table.add<SquaredErrorForward, make_squared_error_forward>();
    table.add_half_types<Sum, make_for_one_dtype<Sum, make_sum>>();
    table.add_half_types<ArgMax, make_argmax>();
    table.add_half_types<Extreme, make_extreme>();
    table.add_half_types<SquaredErrorForward, make_half_squared_error_forward>();
}

}  // namespace lockstep::cuda
