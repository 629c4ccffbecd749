// Sums, the largest element, log-softmax.
#include <limits>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/internal/indexing_operations.h"
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

/// A tensor seen as results times the elements that each of them is made from.
struct Split {
    Shape kept, reduced;                  // sizes
    Shape kept_strides, reduced_strides;  // of the input
    bool across = false;
};

Split split_dims(const TensorMeta& x, std::uint32_t dims) {
    Split split;
    for (int d = 0; d < x.shape.dims(); ++d) {
        const bool is_reduced = (dims >> d & 1u) != 0;
        (is_reduced ? split.reduced : split.kept).push_back(x.shape[d]);
        (is_reduced ? split.reduced_strides : split.kept_strides).push_back(x.strides[d]);
        // By shape, not by strides: the order of summation depends on nothing else.
        if (x.shape[d] > 1) split.across = !is_reduced;
    }
    return split;
}

ReducePlan plan_of(const Split& split) {
    return ReducePlan::make(split.kept.numel(), split.reduced.numel(), split.across);
}

StridedIndex<1> index_of(const Shape& sizes, const Shape& strides) {
    const Shape all[] = {strides};
    return make_index(sizes, all, Order::logical);
}

StridedIndex<2> index_of(const Shape& sizes, const Shape& a, const Shape& b) {
    const Shape all[] = {a, b};
    return make_index(sizes, all, Order::logical);
}

// ---- sums -------------------------------------------------------------------------------------------------------

/// Wide enough to add millions of elements without losing digits of T.
template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;

template <class T>
struct SumElements {
    using Value = SumOf<T>;
    StridedIndex<2> kept;  // x, y
    StridedIndex<1> reduced;
    const T* x;
    T* y;

    LOCKSTEP_ELEMENT Value zero() const { return 0; }
    LOCKSTEP_ELEMENT void add(Value& sum, std::int64_t output, std::int64_t k) const {
        sum += static_cast<Value>(x[kept(output).of[0] + reduced(k).of[0]]);
    }
    LOCKSTEP_ELEMENT void join(Value& sum, const Value& other) const { sum += other; }
    LOCKSTEP_ELEMENT void finish(std::int64_t output, const Value& sum) const {
        y[kept(output).of[1]] = static_cast<T>(sum);
    }
};

template <class T>
KernelPtr sum_kernel(const Sum& op, KernelRequest& request) {
    const Split split = split_dims(request.in[0], op.dims);
    Shape y_strides;
    for (int d = 0; d < request.in[0].shape.dims(); ++d)
        if ((op.dims >> d & 1u) == 0) y_strides.push_back(request.out[0].strides[d]);
    const ReducePlan plan = plan_of(split);
    const SumElements<T> functor{index_of(split.kept, split.kept_strides, y_strides),
                                 index_of(split.reduced, split.reduced_strides), nullptr, nullptr};
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
    using Value = double;
    StridedIndex<2> index;  // a, b
    const T* a;
    const T* b;
    T* y;

    LOCKSTEP_ELEMENT Value zero() const { return 0; }
    LOCKSTEP_ELEMENT void add(Value& sum, std::int64_t, std::int64_t k) const {
        const auto at = index(k);
        const double difference = static_cast<double>(a[at.of[0]]) - static_cast<double>(b[at.of[1]]);
        sum += difference * difference;
    }
    LOCKSTEP_ELEMENT void join(Value& sum, const Value& other) const { sum += other; }
    LOCKSTEP_ELEMENT void finish(std::int64_t, const Value& sum) const { *y = static_cast<T>(sum); }
};

// ---- the largest ------------------------------------------------------------------------------------------------

template <class T>
struct Largest {
    T value;
    std::int64_t where;  // -1: none yet
};

template <class T>
struct FindLargest {
    using Value = Largest<T>;
    StridedIndex<2> kept;  // x, y
    std::int64_t stride;
    const T* x;
    std::int64_t* y;

    LOCKSTEP_ELEMENT Value zero() const { return {T(0), -1}; }
    LOCKSTEP_ELEMENT void add(Value& best, std::int64_t output, std::int64_t k) const {
        join(best, {x[kept(output).of[0] + k * stride], k});
    }
    /// The first of equals, in whichever order they come; NaN is larger than everything, as in PyTorch.
    LOCKSTEP_ELEMENT void join(Value& best, const Value& other) const {
        if (other.where < 0) return;
        const bool best_nan = best.value != best.value;
        const bool other_nan = other.value != other.value;
        const bool equal = best_nan ? other_nan : other.value == best.value;
        const bool larger = !best_nan && (other_nan || other.value > best.value);
        if (best.where < 0 || larger || (equal && other.where < best.where)) best = other;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t output, const Value& best) const { y[kept(output).of[1]] = best.where; }
};

// ---- softmax ----------------------------------------------------------------------------------------------------

template <class T>
struct Exponentials {
    T largest;
    double sum;  // of exp(x - largest)
};

template <class T, bool logarithm>
struct SumExponentials {
    using Value = Exponentials<T>;
    StridedIndex<1> kept;
    std::int64_t stride;
    const T* x;
    T* largest;  // (outputs), and after it the sums, or their logarithms (outputs)
    std::int64_t outputs;

    LOCKSTEP_ELEMENT Value zero() const { return {-std::numeric_limits<T>::infinity(), 0}; }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t output, std::int64_t k) const {
        const T element = x[kept(output).of[0] + k * stride];
        if (element == -std::numeric_limits<T>::infinity()) return;
        // exp(element - element), which is NaN for inf and NaN.
        join(value, {element, 1.0 + static_cast<double>(element - element)});
    }
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        const T largest_of_both = other.largest > value.largest ? other.largest : value.largest;
        value.sum = scaled(value, largest_of_both) + scaled(other, largest_of_both);
        value.largest = largest_of_both;
    }
    /// The sum with respect to another largest element; without elements it stays what it is.
    static LOCKSTEP_ELEMENT double scaled(const Value& value, T to) {
        if (value.largest == to || value.sum == 0) return value.sum;
        return value.sum * static_cast<double>(std::exp(value.largest - to));
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t output, const Value& value) const {
        largest[output] = value.largest;
        largest[outputs + output] = static_cast<T>(logarithm ? std::log(value.sum) : value.sum);
    }
};

template <class T, bool logarithm>
struct SoftmaxElement {
    StridedIndex<3> index;  // y, x, row
    T* y;
    const T* x;
    const T* largest;
    std::int64_t outputs;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        const T down = x[at.of[1]] - largest[at.of[2]];
        const T sum = largest[outputs + at.of[2]];
        y[at.of[0]] = logarithm ? down - sum : std::exp(down) / sum;
    }
};

/// Of dy, or of its product with y.
template <class T, bool logarithm>
struct SumRows {
    using Value = double;
    StridedIndex<2> kept;  // dy, y
    std::int64_t stride, y_stride;
    const T* dy;
    const T* y;
    T* sums;

    LOCKSTEP_ELEMENT Value zero() const { return 0; }
    LOCKSTEP_ELEMENT void add(Value& sum, std::int64_t output, std::int64_t k) const {
        const auto row = kept(output);
        const auto gradient = static_cast<double>(dy[row.of[0] + k * stride]);
        sum += logarithm ? gradient : gradient * static_cast<double>(y[row.of[1] + k * y_stride]);
    }
    LOCKSTEP_ELEMENT void join(Value& sum, const Value& other) const { sum += other; }
    LOCKSTEP_ELEMENT void finish(std::int64_t output, const Value& sum) const { sums[output] = static_cast<T>(sum); }
};

template <class T, bool logarithm>
struct SoftmaxBackwardElement {
    StridedIndex<4> index;  // dx, dy, y, row
    T* dx;
    const T* dy;
    const T* y;
    const T* sums;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        const T gradient = dy[at.of[1]], result = y[at.of[2]], sum = sums[at.of[3]];
        dx[at.of[0]] = logarithm ? gradient - std::exp(result) * sum : result * (gradient - sum);
    }
};

/// Strides that number the rows of a reduction over `dim`.
Shape row_strides(const Shape& shape, int dim) {
    Shape rows = shape;
    rows[dim] = 1;
    Shape strides = rows.contiguous_strides();
    strides[dim] = 0;
    return strides;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

template <class T, bool logarithm>
KernelPtr softmax_forward(const SoftmaxForward<logarithm>& op, KernelRequest& request) {
    const TensorMeta& x = request.in[0];
    lay_out_like(request.out[0], x);
    const Split split = split_dims(x, 1u << op.dim);
    const ReducePlan plan = plan_of(split);
    const SumExponentials<T, logarithm> sums{index_of(split.kept, split.kept_strides), x.strides[op.dim], nullptr,
                                             nullptr, plan.outputs};
    const Shape strides[] = {request.out[0].strides, x.strides, row_strides(x.shape, op.dim)};
    const StridedIndex<3> index = make_index(x.shape, strides, Order::memory);
    const std::size_t rows = aligned(2 * static_cast<std::size_t>(plan.outputs) * sizeof(T));
    return make_cuda_kernel(
        request,
        [sums, plan, index, rows](const Queue& queue, const KernelArgs& v) {
            SumExponentials<T, logarithm> bound = sums;
            bound.x = v.input<T>(0);
            bound.largest = static_cast<T*>(v.scratch);
            reduce(queue, "softmax_sums", plan, bound, static_cast<char*>(v.scratch) + rows);
            launch(queue, "softmax", index.count,
                   SoftmaxElement<T, logarithm>{index, v.output<T>(0), bound.x, bound.largest, plan.outputs});
        },
        rows + plan.scratch_bytes<SumExponentials<T, logarithm>>());
}

template <class T, bool logarithm>
KernelPtr softmax_backward(const SoftmaxBackward<logarithm>& op, KernelRequest& request) {
    const TensorMeta& dy = request.in[0];
    const TensorMeta& y = request.in[1];
    lay_out_like(request.out[0], y);
    const Split split = split_dims(dy, 1u << op.dim);
    const ReducePlan plan = plan_of(split);
    const SumRows<T, logarithm> sums{index_of(split.kept, split.kept_strides, split_dims(y, 1u << op.dim).kept_strides),
                                     dy.strides[op.dim],
                                     y.strides[op.dim],
                                     nullptr,
                                     nullptr,
                                     nullptr};
    const Shape strides[] = {request.out[0].strides, dy.strides, y.strides, row_strides(y.shape, op.dim)};
    const StridedIndex<4> index = make_index(y.shape, strides, Order::memory);
    const std::size_t rows = aligned(static_cast<std::size_t>(plan.outputs) * sizeof(T));
    return make_cuda_kernel(
        request,
        [sums, plan, index, rows](const Queue& queue, const KernelArgs& v) {
            SumRows<T, logarithm> bound = sums;
            bound.dy = v.input<T>(0);
            bound.y = v.input<T>(1);
            bound.sums = static_cast<T*>(v.scratch);
            reduce(queue, "softmax_backward_sums", plan, bound, static_cast<char*>(v.scratch) + rows);
            launch(queue, "softmax_backward", index.count,
                   SoftmaxBackwardElement<T, logarithm>{index, v.output<T>(0), bound.dy, bound.y, bound.sums});
        },
        rows + plan.scratch_bytes<SumRows<T, logarithm>>());
}

KernelPtr make_sum(const Sum& op, KernelRequest& request) {
    switch (request.in[0].dtype) {
        case DType::f32: return sum_kernel<float>(op, request);
        case DType::f64: return sum_kernel<double>(op, request);
        case DType::i32: return sum_kernel<std::int32_t>(op, request);
        case DType::i64: return sum_kernel<std::int64_t>(op, request);
        default: refuse_dtype(op.name, request.in[0].dtype);
    }
}

KernelPtr make_squared_error_forward(const SquaredErrorForward& op, KernelRequest& request) {
    const TensorMeta& a = request.in[0];
    const StridedIndex<2> index = index_of(a.shape, a.strides, request.in[1].strides);
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
    const StridedIndex<2> kept = index_of(split.kept, split.kept_strides, y_strides);
    return visit_float(op.name, x.dtype, [&](auto zero) {
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

template <bool logarithm>
KernelPtr make_softmax_forward(const SoftmaxForward<logarithm>& op, KernelRequest& request) {
    return visit_float(op.name, request.in[0].dtype,
                       [&](auto zero) { return softmax_forward<decltype(zero)>(op, request); });
}

template <bool logarithm>
KernelPtr make_softmax_backward(const SoftmaxBackward<logarithm>& op, KernelRequest& request) {
    return visit_float(op.name, request.in[0].dtype,
                       [&](auto zero) { return softmax_backward<decltype(zero)>(op, request); });
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
    table.add<Sum, make_sum>();
    table.add<ArgMax, make_argmax>();
    table.add<SoftmaxForward<false>, make_softmax_forward<false>>();
    table.add<SoftmaxBackward<false>, make_softmax_backward<false>>();
    table.add<SoftmaxForward<true>, make_softmax_forward<true>>();
    table.add<SoftmaxBackward<true>, make_softmax_backward<true>>();
    table.add<SquaredErrorForward, make_squared_error_forward>();
}

}  // namespace lockstep::cuda
