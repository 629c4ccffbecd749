// Softmax and its logarithm.
#include <limits>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/rows.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/split.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

StridedIndex<1> index_of(const Shape& sizes, const Shape& strides) {
    const Shape all[] = {strides};
    return make_index(sizes, all, Order::logical);
}

StridedIndex<2> index_of(const Shape& sizes, const Shape& a, const Shape& b) {
    const Shape all[] = {a, b};
    return make_index(sizes, all, Order::logical);
}

/// Sum of exp(x - largest).
template <class T>
struct Exponentials {
    T largest;
    RunningSum<T> sum;

    /// Makes the sum relative to a larger `to`.
    LOCKSTEP_HD_INLINE void rescale(T to) {
        if (largest != to) sum.scale(std::exp(largest - to));
        largest = to;
    }
};

template <class T, bool logarithm>
struct SumExponentials {
    using Value = Exponentials<T>;
    StridedIndex<1> kept;
    std::int64_t stride;
    const T* x;
    T* largest;  // (outputs), followed by the sums or their logarithms (outputs)
    std::int64_t outputs;

    LOCKSTEP_HD_INLINE Value zero() const { return {-std::numeric_limits<T>::infinity(), {}}; }
    LOCKSTEP_HD_INLINE const T* begin(std::int64_t output) const { return x + kept(output).of[0]; }
    LOCKSTEP_HD_INLINE void add(Value& value, const T* from, std::int64_t k) const {
        const T element = from[k * stride];
        if (element == -std::numeric_limits<T>::infinity()) return;
        if (element > value.largest) value.rescale(element);
        // Not a number for infinity and NaN.
        value.sum.add(element == value.largest ? T(1) + (element - element) : std::exp(element - value.largest));
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        Value more = other;
        if (more.largest > value.largest)
            value.rescale(more.largest);
        else
            more.rescale(value.largest);
        value.sum.add(more.sum);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& value) const {
        largest[output] = value.largest;
        largest[outputs + output] = logarithm ? std::log(value.sum.value()) : value.sum.value();
    }
};

template <class T, bool logarithm>
struct SoftmaxElement {
    StridedIndex<3> index;  // y, x, row
    T* y;
    const T* x;
    const T* largest;
    std::int64_t outputs;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        const T down = x[at.of[1]] - largest[at.of[2]];
        const T sum = largest[outputs + at.of[2]];
        y[at.of[0]] = logarithm ? down - sum : std::exp(down) / sum;
    }
};

/// Sum of dy, or of its product with y.
template <class T, bool logarithm>
struct SumRows {
    using Value = RunningSum<T>;
    StridedIndex<2> kept;  // dy, y
    std::int64_t stride, y_stride;
    const T* dy;
    const T* y;
    T* sums;

    struct Row {
        const T* dy;
        const T* y;
    };
    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE Row begin(std::int64_t output) const {
        const auto at = kept(output);
        return {dy + at.of[0], y + at.of[1]};
    }
    LOCKSTEP_HD_INLINE void add(Value& sum, const Row& row, std::int64_t k) const {
        const T gradient = row.dy[k * stride];
        sum.add(logarithm ? gradient : gradient * row.y[k * y_stride]);
    }
    LOCKSTEP_HD_INLINE void join(Value& sum, const Value& other) const { sum.add(other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& sum) const { sums[output] = sum.value(); }
};

template <class T, bool logarithm>
struct SoftmaxBackwardElement {
    StridedIndex<4> index;  // dx, dy, y, row
    T* dx;
    const T* dy;
    const T* y;
    const T* sums;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        const T gradient = dy[at.of[1]], result = y[at.of[2]], sum = sums[at.of[3]];
        dx[at.of[0]] = logarithm ? gradient - std::exp(result) * sum : result * (gradient - sum);
    }
};

// Rows that are contiguous.

template <class Stored, bool logarithm>
struct SoftmaxRow {
    using T = UpcastType<Stored>;
    int size;
    const Stored* x;
    Stored* y;

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t row) const {
        const Stored* const from = x + row * size;
        Stored* const to = y + row * size;
        T values[Group::items];
        T largest = -std::numeric_limits<T>::infinity(), sum = T(0);
        group.each(size, [&](int i, int k) {
            values[i] = upcast(from[k]);
            if (values[i] > largest) largest = values[i];
        });
        largest = largest_of(group, largest);
        group.each(size, [&](int i, int) {
            const T down = values[i] - largest, power = std::exp(down);
            sum += power;
            values[i] = logarithm ? down : power;
        });
        sum = sum_of(group, sum);
        const T last = logarithm ? std::log(sum) : T(1) / sum;
        group.each(
            size, [&](int i, int k) { to[k] = CastTo<Stored>::from(logarithm ? values[i] - last : values[i] * last); });
    }
};

template <class Stored, bool logarithm>
struct SoftmaxBackwardRow {
    using T = UpcastType<Stored>;
    int size;
    const Stored* dy;
    const Stored* y;
    Stored* dx;

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t row) const {
        const std::int64_t first = row * size;
        T gradients[Group::items], results[Group::items];
        T sum = T(0);
        group.each(size, [&](int i, int k) {
            gradients[i] = upcast(dy[first + k]);
            results[i] = upcast(y[first + k]);
            sum += logarithm ? gradients[i] : gradients[i] * results[i];
        });
        sum = sum_of(group, sum);
        group.each(size, [&](int i, int k) {
            dx[first + k] = CastTo<Stored>::from(logarithm ? gradients[i] - std::exp(results[i]) * sum
                                                           : results[i] * (gradients[i] - sum));
        });
    }
};

/// Whether registers can hold the rows of a reduction over `dim`.
bool in_registers(const TensorMeta& x, int dim) {
    return dim == x.shape.dims() - 1 && x.is_contiguous() && x.shape[dim] <= longest_row;
}

/// Strides that order the rows of a reduction over `dim`.
Shape row_strides(const Shape& shape, int dim) {
    Shape rows = shape;
    rows[dim] = 1;
    Shape strides = rows.contiguous_strides();
    strides[dim] = 0;
    return strides;
}

template <class Stored, bool logarithm>
KernelPtr softmax_of_rows(KernelRequest& request) {
    const auto size = static_cast<int>(request.in[0].shape[request.in[0].shape.dims() - 1]);
    const std::int64_t rows = size > 0 ? request.in[0].numel() / size : 0;
    request.out[0].strides = request.out[0].shape.contiguous_strides();
    return make_cuda_kernel(request, [size, rows](const Queue& queue, const KernelArgs& v) {
        launch_rows(queue, "softmax", rows, size,
                    SoftmaxRow<Stored, logarithm>{size, v.input<Stored>(0), v.output<Stored>(0)});
    });
}

template <class Stored, bool logarithm>
KernelPtr softmax_backward_of_rows(KernelRequest& request) {
    const auto size = static_cast<int>(request.in[1].shape[request.in[1].shape.dims() - 1]);
    const std::int64_t rows = size > 0 ? request.in[1].numel() / size : 0;
    request.want_contiguous(0);
    request.out[0].strides = request.out[0].shape.contiguous_strides();
    return make_cuda_kernel(request, [size, rows](const Queue& queue, const KernelArgs& v) {
        launch_rows(
            queue, "softmax_backward", rows, size,
            SoftmaxBackwardRow<Stored, logarithm>{size, v.input<Stored>(0), v.input<Stored>(1), v.output<Stored>(0)});
    });
}

template <class T, bool logarithm>
KernelPtr softmax_forward(const SoftmaxForward<logarithm>& op, KernelRequest& request) {
    const TensorMeta& x = request.in[0];
    set_layout_like(request.out[0], x);
    const Split split = split_dims(x, 1u << op.dim);
    const ReducePlan plan = plan_of(split);
    const SumExponentials<T, logarithm> sums{index_of(split.kept, split.kept_strides), x.strides[op.dim], nullptr,
                                             nullptr, plan.outputs};
    const Shape strides[] = {request.out[0].strides, x.strides, row_strides(x.shape, op.dim)};
    const StridedIndex<3> index = make_index(x.shape, strides, Order::memory);
    const std::size_t rows = round_up(2 * static_cast<std::size_t>(plan.outputs) * sizeof(T), scratch_alignment);
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
    set_layout_like(request.out[0], y);
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
    const std::size_t rows = round_up(static_cast<std::size_t>(plan.outputs) * sizeof(T), scratch_alignment);
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

template <bool logarithm>
KernelPtr make_softmax_forward(const SoftmaxForward<logarithm>& op, KernelRequest& request) {
    const DType dtype = request.in[0].dtype;  // doubles are too large for registers
    if (dtype == DType::f32 && in_registers(request.in[0], op.dim)) return softmax_of_rows<float, logarithm>(request);
    return visit_float(op.name, dtype, [&](auto zero) { return softmax_forward<decltype(zero)>(op, request); });
}

template <bool logarithm>
KernelPtr make_half_softmax_forward(const SoftmaxForward<logarithm>& op, KernelRequest& request) {
    if (!has_one_dtype(request) || !in_registers(request.in[0], op.dim)) return nullptr;
    if (request.in[0].dtype == DType::f16) return softmax_of_rows<Half, logarithm>(request);
    return softmax_of_rows<BFloat16, logarithm>(request);
}

template <bool logarithm>
KernelPtr make_softmax_backward(const SoftmaxBackward<logarithm>& op, KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    if (dtype == DType::f32 && in_registers(request.in[1], op.dim))
        return softmax_backward_of_rows<float, logarithm>(request);
    return visit_float(op.name, dtype, [&](auto zero) { return softmax_backward<decltype(zero)>(op, request); });
}

template <bool logarithm>
KernelPtr make_half_softmax_backward(const SoftmaxBackward<logarithm>& op, KernelRequest& request) {
    if (!has_one_dtype(request) || !in_registers(request.in[1], op.dim)) return nullptr;
    if (request.in[0].dtype == DType::f16) return softmax_backward_of_rows<Half, logarithm>(request);
    return softmax_backward_of_rows<BFloat16, logarithm>(request);
}

}  // namespace

void add_softmax_kernels(KernelTable& table) {
    table.add<SoftmaxForward<false>, make_softmax_forward<false>>();
    table.add<SoftmaxBackward<false>, make_softmax_backward<false>>();
    table.add<SoftmaxForward<true>, make_softmax_forward<true>>();
    table.add<SoftmaxBackward<true>, make_softmax_backward<true>>();
    table.add_half_types<SoftmaxForward<false>, make_half_softmax_forward<false>>();
    table.add_half_types<SoftmaxBackward<false>, make_half_softmax_backward<false>>();
    table.add_half_types<SoftmaxForward<true>, make_half_softmax_forward<true>>();
    table.add_half_types<SoftmaxBackward<true>, make_half_softmax_backward<true>>();
}

}  // namespace lockstep::cuda
