// Softmax and its logarithm.
#include <limits>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/row_kernels.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/softmax_columns.h"
#include "lockstep/ops/cuda/split.h"
#include "lockstep/ops/cuda/unroll.h"
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

template <class T, bool logarithm>
struct SumExponentials {
    using Value = Exponentials<T>;
    StridedIndex<1> kept;
    std::int64_t stride;
    const T* x;
    T* largest;  // (outputs), followed by the sums or their logarithms (outputs)
    std::int64_t outputs;

    LOCKSTEP_HD_INLINE Value zero() const { return {{}, -std::numeric_limits<T>::infinity()}; }
    LOCKSTEP_HD_INLINE const T* begin(std::int64_t output) const { return x + kept(output).of[0]; }
    LOCKSTEP_HD_INLINE void add(Value& value, const T* from, std::int64_t k) const { value.add(from[k * stride]); }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const { value.add(other); }
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
        dx[at.of[0]] = softmax_gradient<logarithm>(gradient, result, sum);
    }
};

// Rows that are contiguous.

template <class Stored, bool logarithm>
struct SoftmaxRow {
    using Element = Stored;
    using T = UpcastType<Stored>;
    int size;
    const Stored* x;
    Stored* y;

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t row) const {
        typename Group::template Packs<T> values;
        group.load_as(x + row * size, size, values);
        T largest = -std::numeric_limits<T>::infinity(), sum = T(0);
        group.each(size, [&](int p, int j) {
            if (values[p].of[j] > largest) largest = values[p].of[j];
        });
        largest = largest_of(group, largest);
        group.each(size, [&](int p, int j) {
            const T down = values[p].of[j] - largest, power = std::exp(down);
            sum += power;
            values[p].of[j] = logarithm ? down : power;
        });
        sum = sum_of(group, sum);
        const T last = logarithm ? std::log(sum) : T(1) / sum;
        group.each_pack(size, [&](int p, int k) {
            Pack<Stored, Group::width> out;
            LOCKSTEP_UNROLL
            for (int j = 0; j < Group::width; ++j)
                out.of[j] = CastTo<Stored>::from(logarithm ? values[p].of[j] - last : values[p].of[j] * last);
            group.store(y + row * size, k, size, out);
        });
    }
};

template <class Stored, bool logarithm>
struct SoftmaxBackwardRow {
    using Element = Stored;
    using T = UpcastType<Stored>;
    int size;
    const Stored* dy;
    const Stored* y;
    Stored* dx;

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t row) const {
        typename Group::template Packs<Stored> dys, ys;
        group.load(dy + row * size, size, dys);
        group.load(y + row * size, size, ys);
        T sum = T(0);
        group.each(size, [&](int p, int j) {
            const T gradient = upcast(dys[p].of[j]);
            sum += logarithm ? gradient : gradient * upcast(ys[p].of[j]);
        });
        sum = sum_of(group, sum);
        group.each_pack(size, [&](int p, int k) {
            Pack<Stored, Group::width> out;
            LOCKSTEP_UNROLL
            for (int j = 0; j < Group::width; ++j)
                out.of[j] =
                    CastTo<Stored>::from(softmax_gradient<logarithm>(upcast(dys[p].of[j]), upcast(ys[p].of[j]), sum));
            group.store(dx + row * size, k, size, out);
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
        const SoftmaxRow<Stored, logarithm> function{size, v.input<Stored>(0), v.output<Stored>(0)};
        launch_rows(queue, "softmax", rows, size, function, are_aligned<widest<Stored>>(function.x, function.y));
    });
}

template <class Stored, bool logarithm>
KernelPtr softmax_backward_of_rows(KernelRequest& request) {
    const auto size = static_cast<int>(request.in[1].shape[request.in[1].shape.dims() - 1]);
    const std::int64_t rows = size > 0 ? request.in[1].numel() / size : 0;
    request.want_contiguous(0);
    request.out[0].strides = request.out[0].shape.contiguous_strides();
    return make_cuda_kernel(request, [size, rows](const Queue& queue, const KernelArgs& v) {
        const SoftmaxBackwardRow<Stored, logarithm> function{size, v.input<Stored>(0), v.input<Stored>(1),
                                                             v.output<Stored>(0)};
        launch_rows(queue, "softmax_backward", rows, size, function,
                    are_aligned<widest<Stored>>(function.dy, function.y, function.dx));
    });
}

template <class Stored, bool logarithm>
KernelPtr softmax_of_columns(KernelRequest& request, int dim) {
    using T = UpcastType<Stored>;
    constexpr int width = SoftmaxColumns::width<Stored>;
    using Sums = SumExponentialsOfColumns<Stored, width, logarithm>;
    request.out[0].strides = request.out[0].shape.contiguous_strides();
    const SoftmaxColumns columns(request.in[0].shape, dim, width);
    const ReducePlan plan = columns.plan();
    if (SoftmaxColumns::are_short(plan))
        return make_cuda_kernel(request, [columns, count = plan.outputs](const Queue& queue, const KernelArgs& v) {
            const auto x = packed_input<width>(v.input<Stored>(0));
            const auto y = packed_output<width>(v.output<Stored>(0));
            launch(queue, "softmax", count,
                   SoftmaxOfShortColumns<Stored, width, logarithm>{{columns, x, nullptr, nullptr},
                                                                   {x, nullptr, nullptr, y}});
        });
    const std::size_t of_columns =
        round_up(static_cast<std::size_t>(plan.outputs * width) * sizeof(T), scratch_alignment);
    return make_cuda_kernel(
        request,
        [columns, plan, of_columns](const Queue& queue, const KernelArgs& v) {
            auto* const scratch = static_cast<char*>(v.scratch);
            auto* const largest = reinterpret_cast<T*>(scratch);
            auto* const sums = reinterpret_cast<T*>(scratch + of_columns);
            const auto x = packed_input<width>(v.input<Stored>(0));
            reduce(queue, "softmax_sums", plan, Sums{columns, x, largest, sums}, scratch + 2 * of_columns);
            launch_columns(queue, "softmax", columns.tiles(),
                           SoftmaxOfColumns<Stored, width, logarithm>{x, largest, sums,
                                                                      packed_output<width>(v.output<Stored>(0))});
        },
        2 * of_columns + plan.scratch_bytes<Sums>());
}

template <class Stored, bool logarithm>
KernelPtr softmax_backward_of_columns(KernelRequest& request, int dim) {
    using T = UpcastType<Stored>;
    constexpr int width = SoftmaxColumns::width<Stored>;
    using Sums = SumColumns<Stored, width, logarithm>;
    request.want_contiguous(0);
    request.out[0].strides = request.out[0].shape.contiguous_strides();
    const SoftmaxColumns columns(request.in[1].shape, dim, width);
    const ReducePlan plan = columns.plan();
    if (SoftmaxColumns::are_short(plan))
        return make_cuda_kernel(request, [columns, count = plan.outputs](const Queue& queue, const KernelArgs& v) {
            const auto dy = packed_input<width>(v.input<Stored>(0)), y = packed_input<width>(v.input<Stored>(1));
            const auto dx = packed_output<width>(v.output<Stored>(0));
            launch(queue, "softmax_backward", count,
                   SoftmaxBackwardOfShortColumns<Stored, width, logarithm>{{columns, dy, y, nullptr},
                                                                           {dy, y, nullptr, dx}});
        });
    const std::size_t of_columns =
        round_up(static_cast<std::size_t>(plan.outputs * width) * sizeof(T), scratch_alignment);
    return make_cuda_kernel(
        request,
        [columns, plan, of_columns](const Queue& queue, const KernelArgs& v) {
            auto* const sums = static_cast<T*>(v.scratch);
            const auto dy = packed_input<width>(v.input<Stored>(0)), y = packed_input<width>(v.input<Stored>(1));
            reduce(queue, "softmax_backward_sums", plan, Sums{columns, dy, y, sums},
                   static_cast<char*>(v.scratch) + of_columns);
            launch_columns(queue, "softmax_backward", columns.tiles(),
                           SoftmaxBackwardOfColumns<Stored, width, logarithm>{
                               dy, y, sums, packed_output<width>(v.output<Stored>(0))});
        },
        of_columns + plan.scratch_bytes<Sums>());
}

/// A kernel for rows or columns of f32 or 16-bit elements; null if neither suits.
template <class Stored, bool logarithm>
KernelPtr softmax_in_packs(const SoftmaxForward<logarithm>& op, KernelRequest& request) {
    if (in_registers(request.in[0], op.dim)) return softmax_of_rows<Stored, logarithm>(request);
    if (!SoftmaxColumns::fits(request.in[0], op.dim, SoftmaxColumns::width<Stored>)) return nullptr;
    return softmax_of_columns<Stored, logarithm>(request, op.dim);
}

template <class Stored, bool logarithm>
KernelPtr softmax_in_packs(const SoftmaxBackward<logarithm>& op, KernelRequest& request) {
    if (in_registers(request.in[1], op.dim)) return softmax_backward_of_rows<Stored, logarithm>(request);
    if (!SoftmaxColumns::fits(request.in[1], op.dim, SoftmaxColumns::width<Stored>)) return nullptr;
    return softmax_backward_of_columns<Stored, logarithm>(request, op.dim);
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
    if (dtype == DType::f32)
        if (auto kernel = softmax_in_packs<float>(op, request)) return kernel;
    return visit_float(op.name, dtype, [&](auto zero) { return softmax_forward<decltype(zero)>(op, request); });
}

template <bool logarithm>
KernelPtr make_softmax_backward(const SoftmaxBackward<logarithm>& op, KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    if (dtype == DType::f32)
        if (auto kernel = softmax_in_packs<float>(op, request)) return kernel;
    return visit_float(op.name, dtype, [&](auto zero) { return softmax_backward<decltype(zero)>(op, request); });
}

template <class Op>
KernelPtr make_half_softmax(const Op& op, KernelRequest& request) {
    if (!has_one_dtype(request)) return nullptr;
    if (request.in[0].dtype == DType::f16) return softmax_in_packs<Half>(op, request);
    return softmax_in_packs<BFloat16>(op, request);
}

}  // namespace

void add_softmax_kernels(KernelTable& table) {
    table.add<SoftmaxForward<false>, make_softmax_forward<false>>();
    table.add<SoftmaxBackward<false>, make_softmax_backward<false>>();
    table.add<SoftmaxForward<true>, make_softmax_forward<true>>();
    table.add<SoftmaxBackward<true>, make_softmax_backward<true>>();
    table.add_half_types<SoftmaxForward<false>, make_half_softmax<SoftmaxForward<false>>>();
    table.add_half_types<SoftmaxBackward<false>, make_half_softmax<SoftmaxBackward<false>>>();
    table.add_half_types<SoftmaxForward<true>, make_half_softmax<SoftmaxForward<true>>>();
    table.add_half_types<SoftmaxBackward<true>, make_half_softmax<SoftmaxBackward<true>>>();
}

}  // namespace lockstep::cuda
