// Cat, Split, Pad and OneHot: tensors that are pieces of others.
#include <algorithm>
#include <vector>

#include "lockstep/ops/cuda/copy_element.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/report.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/indexing_operations.h"

namespace lockstep::cuda {

namespace {

/// A piece of a whole tensor.
struct Piece {
    StridedIndex<2> index;  // to, from
    std::int64_t offset;    // of its first element in the whole
    int which;
};

KernelPtr make_cat(const Cat& op, KernelRequest& request) {
    TensorMeta& to = request.out[0];
    if (op.dim == 1 && std::all_of(request.in.begin(), request.in.end(), is_channels_last)) lay_out_channels_last(to);
    std::vector<Piece> pieces;
    std::int64_t offset = 0;
    for (const TensorMeta& from : request.in) {
        const Shape strides[] = {to.strides, from.strides};
        pieces.push_back({make_index(from.shape, strides, Order::memory), offset, static_cast<int>(pieces.size())});
        offset += from.shape[op.dim] * to.strides[op.dim];
    }
    return visit_size(to.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [pieces](const Queue& queue, const KernelArgs& v) {
            for (const Piece& piece : pieces)
                launch(queue, "cat", piece.index.count,
                       CopyElement<T>{piece.index, v.output<T>(0) + piece.offset, v.input<T>(piece.which)});
        });
    });
}

KernelPtr make_split(const Split& op, KernelRequest& request) {
    const TensorMeta& from = request.in[0];
    const bool last = op.dim == 1 && is_channels_last(from);
    std::vector<Piece> pieces;
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < op.sizes.size(); ++i) {
        if (request.has_out(i)) {
            TensorMeta& to = request.out[i];
            if (last) lay_out_channels_last(to);
            const Shape strides[] = {to.strides, from.strides};
            pieces.push_back({make_index(to.shape, strides, Order::memory), offset, static_cast<int>(i)});
        }
        offset += op.sizes[i] * from.strides[op.dim];
    }
    return visit_size(from.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [pieces](const Queue& queue, const KernelArgs& v) {
            for (const Piece& piece : pieces)
                launch(queue, "split", piece.index.count,
                       CopyElement<T>{piece.index, v.output<T>(piece.which), v.input<T>(0) + piece.offset});
        });
    });
}

template <class T>
struct PadElement {
    int dims;
    std::int64_t sizes[Shape::max_dims], strides[Shape::max_dims];  // of x
    std::int64_t before[Shape::max_dims];
    std::int64_t y_sizes[Shape::max_dims];
    const T* x;
    T* y;  // row-major
    T value;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        std::int64_t rest = i, at = 0;
        bool inside = true;
        for (int d = dims - 1; d >= 0; --d) {
            const std::int64_t position = rest % y_sizes[d] - before[d];
            rest /= y_sizes[d];
            inside = inside && position >= 0 && position < sizes[d];
            at += position * strides[d];
        }
        y[i] = inside ? x[at] : value;
    }
};

KernelPtr make_pad(const Pad& op, KernelRequest& request) {
    const TensorMeta &x = request.in[0], &y = request.out[0];
    return visit_dtype(x.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        PadElement<T> element{};
        element.dims = x.shape.dims();
        for (int d = 0; d < element.dims; ++d) {
            element.sizes[d] = x.shape[d];
            element.strides[d] = x.strides[d];
            element.before[d] = op.before[d];
            element.y_sizes[d] = y.shape[d];
        }
        element.value = Narrow<T>::from(op.value);
        return make_cuda_kernel(request, [element, count = y.numel()](const Queue& queue, const KernelArgs& v) {
            PadElement<T> bound = element;
            bound.x = v.input<T>(0);
            bound.y = v.output<T>(0);
            launch(queue, "pad", count, bound);
        });
    });
}

/// The first number that does not lie in the dimension; -1 where all do.
struct FindBadNumber {
    using Value = std::int64_t;
    StridedIndex<1> index;
    const std::int64_t* x;
    std::int64_t classes, in_row, first_row;
    StatusWord* status;
    const StepState* step;
    int shard;

    LOCKSTEP_ELEMENT Value zero() const { return -1; }
    LOCKSTEP_ELEMENT void add(Value& bad, std::int64_t, std::int64_t i) const {
        const std::int64_t number = x[index(i).of[0]];
        if (number < 0 || number >= classes) join(bad, i);
    }
    LOCKSTEP_ELEMENT void join(Value& bad, const Value& other) const {
        if (other >= 0 && (bad < 0 || other < bad)) bad = other;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t, const Value& bad) const {
        if (bad >= 0)
            report(status, StatusCode::target_out_of_range, shard, step, first_row + bad / in_row, x[index(bad).of[0]]);
    }
};

template <class T>
struct OneHotElement {
    StridedIndex<1> numbers;  // of the elements of y
    const std::int64_t* x;
    T* y;  // row-major
    std::int64_t classes, inner;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        y[i] = x[numbers(i).of[0]] == i / inner % classes ? T(1) : T(0);
    }
};

template <class T>
KernelPtr one_hot_kernel(const OneHot& op, const KernelRequest& request) {
    const TensorMeta &x = request.in[0], &y = request.out[0];
    const Shape x_strides[] = {x.strides};
    FindBadNumber find{};
    find.index = make_index(x.shape, x_strides, Order::logical);
    find.classes = y.shape[op.dim];
    find.in_row = x.shape.empty() ? 1 : std::max<std::int64_t>(1, x.numel() / std::max<std::int64_t>(1, x.shape[0]));
    Shape of_numbers = x.strides;
    of_numbers.insert(op.dim, 0);
    const Shape y_strides[] = {of_numbers};
    OneHotElement<T> element{};
    element.numbers = make_index(y.shape, y_strides, Order::logical);
    element.classes = find.classes;
    element.inner = 1;
    for (int d = op.dim + 1; d < y.shape.dims(); ++d) element.inner *= y.shape[d];
    const ReducePlan plan = ReducePlan::make(1, x.numel(), false);
    return make_cuda_kernel(
        request,
        [=, count = y.numel()](const Queue& queue, const KernelArgs& v) {
            FindBadNumber bound_find = find;
            bound_find.x = v.input<std::int64_t>(0);
            bound_find.first_row = v.first_row;
            bound_find.status = v.status;
            bound_find.step = v.step;
            bound_find.shard = v.shard;
            reduce(queue, "one_hot_check", plan, bound_find, v.scratch);
            OneHotElement<T> bound = element;
            bound.x = bound_find.x;
            bound.y = v.output<T>(0);
            launch(queue, "one_hot", count, bound);
        },
        plan.scratch_bytes<FindBadNumber>());
}

KernelPtr make_one_hot(const OneHot& op, KernelRequest& request) {
    if (request.out[0].dtype == DType::i64) return one_hot_kernel<std::int64_t>(op, request);
    return visit_float(op.name, request.out[0].dtype,
                       [&](auto zero) { return one_hot_kernel<decltype(zero)>(op, request); });
}

}  // namespace

void add_piece_kernels(KernelTable& table) {
    table.add<Cat, make_cat>();
    table.add<Split, make_split>();
    table.add<Pad, make_pad>();
    table.add<OneHot, make_one_hot>();
    table.add_short_floats<Cat, make_cat>();
    table.add_short_floats<Split, make_split>();
    table.add_short_floats<Pad, make_pad>();
}

}  // namespace lockstep::cuda
