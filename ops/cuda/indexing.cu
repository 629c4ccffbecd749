// Selection by an index, and sums of elements with equal indices. Sums are in the order of the index, without atomics.
#include "lockstep/ops/internal/indexing_operations.h"

#include <algorithm>

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/find_bad_number.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/visit_size.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cuda {

namespace {

/// The check of the indices of an operation, which are row-major.
struct IndexCheck {
    FindBadNumber find{};
    ReducePlan plan;

    template <class Op>
    IndexCheck(const Op& op, const TensorMeta& index, std::int64_t size)
        : plan(ReducePlan::make(1, index.numel(), false)) {
        const Shape strides[] = {index.strides};
        find.index = make_index(index.shape, strides, Order::logical);
        find.size = size;
        find.per_row = op.per_row;
        find.batch = op.batch;
        find.code = StatusCode::index_out_of_range;
    }
    std::size_t scratch_bytes() const { return plan.scratch_bytes<FindBadNumber>(); }
    void enqueue(const Queue& queue, const KernelArgs& v, int index_input = 1) const {
        find_bad_number(queue, "index_check", plan, find, v.input<std::int64_t>(index_input), v);
    }
};

// ---- one index for all lines ------------------------------------------------------------------------------------

/// Row-major x (outer, size, inner) and y (outer, count, inner). Word: an element, or 16 bytes of elements.
template <class Word>
struct SelectElement {
    StridedIndex<2> index;  // y's elements to: element of x at index 0, position of the index
    std::int64_t size, inner;
    const Word* x;
    const std::int64_t* at_position;
    Word* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        const std::int64_t j = at_position[at.of[1]];
        y[i] = j >= 0 && j < size ? x[at.of[0] + j * inner] : Word{};
    }
};

struct Around {
    std::int64_t outer = 1, size = 1, inner = 1;

    Around(const Shape& shape, int dim) {
        for (int i = 0; i < shape.dims(); ++i) (i < dim ? outer : i == dim ? size : inner) *= shape[i];
    }
};

template <class Word>
void enqueue_select(const Queue& queue, const Around& from, std::int64_t count, std::int64_t inner,
                    const KernelArgs& v) {
    const Shape shape{from.outer, count, inner};
    const Shape strides[] = {{from.size * inner, 0, 1}, {0, 1, 0}};
    launch(queue, "index_select", shape.numel(),
           SelectElement<Word>{make_index(shape, strides, Order::logical), from.size, inner, v.input<Word>(0),
                               v.input<std::int64_t>(1), v.output<Word>(0)});
}

template <class Bits>
KernelPtr make_index_select_of(const IndexSelect& op, const KernelRequest& request) {
    const Around from(request.in[0].shape, op.dim);
    const IndexCheck check(op, request.in[1], from.size);
    return make_cuda_kernel(
        request,
        [=, count = request.in[1].numel()](const Queue& queue, const KernelArgs& v) {
            check.enqueue(queue, v);
            constexpr std::int64_t width = chunk_elements(sizeof(Bits));
            if (from.inner % width == 0 && is_aligned(v.in[0], chunk_bytes) && is_aligned(v.out[0], chunk_bytes))
                enqueue_select<uint4>(queue, from, count, from.inner / width, v);
            else
                enqueue_select<Bits>(queue, from, count, from.inner, v);
        },
        check.scratch_bytes());
}

KernelPtr make_index_select(const IndexSelect& op, KernelRequest& request) {
    request.want_all_contiguous();
    return visit_size(request.out[0].dtype,
                      [&](auto bits) { return make_index_select_of<decltype(bits)>(op, request); });
}

/// Lists of the positions with equal indices: for i < size, `first[i]` is the first position of index i; for the
/// others, `next[i - size]` is the next position with the same index, or -1.
struct LinkPositions {
    const std::int64_t* index;
    std::int64_t size, count, ignored;
    std::int32_t *first, *next;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const bool finds_first = i < size;
        const std::int64_t wanted = finds_first ? i : index[i - size];
        std::int64_t p = finds_first ? 0 : i - size + 1;
        while (p < count && index[p] != wanted) ++p;
        const std::int32_t found = p < count && wanted != ignored ? static_cast<std::int32_t>(p) : -1;
        (finds_first ? first[i] : next[i - size]) = found;
    }
};

template <class T>
struct SumPositions {
    StridedIndex<2> index;  // elements of dx (outer, size, inner) to: element of dy at position 0, index
    std::int64_t inner;
    const std::int32_t *first, *next;
    const T* dy;
    T* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        SumOf<decltype(upcast(T{}))> sum{};
        for (std::int32_t p = first[at.of[1]]; p >= 0; p = next[p]) sum.add(upcast(dy[at.of[0] + p * inner]));
        dx[i] = CastTo<T>::from(sum.value());
    }
};

template <class T>
KernelPtr make_index_select_backward_of(const IndexSelectBackward& op, const KernelRequest& request) {
    const Around to(request.out[0].shape, op.dim);
    const std::int64_t count = request.in[1].numel();
    const Shape shape{to.outer, to.size, to.inner};
    const Shape strides[] = {{count * to.inner, 0, 1}, {0, 1, 0}};
    return make_cuda_kernel(
        request,
        [=, index = make_index(shape, strides, Order::logical), ignored = op.ignored](const Queue& queue,
                                                                                      const KernelArgs& v) {
            auto* const first = static_cast<std::int32_t*>(v.scratch);
            const LinkPositions link{v.input<std::int64_t>(1), to.size, count, ignored, first, first + to.size};
            launch(queue, "index_select_positions", to.size + count, link);
            launch(queue, "index_select_backward", shape.numel(),
                   SumPositions<T>{index, to.inner, link.first, link.next, v.input<T>(0), v.output<T>(0)});
        },
        static_cast<std::size_t>(to.size + count) * sizeof(std::int32_t));
}

KernelPtr make_index_select_backward(const IndexSelectBackward& op, KernelRequest& request) {
    require_at_most(op.name, "indices", static_cast<std::size_t>(request.in[1].numel()), std::size_t{1} << 31);
    request.want_all_contiguous();
    return visit_any_float(op.name, request.out[0].dtype,
                           [&](auto zero) { return make_index_select_backward_of<decltype(zero)>(op, request); });
}

// ---- an index for each line -------------------------------------------------------------------------------------

template <class Bits>
struct GatherElement {
    StridedIndex<2> index;  // y's elements to: element of x at index 0, element of the index
    std::int64_t size, along;
    const Bits* x;
    const std::int64_t* indices;
    Bits* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        const std::int64_t j = indices[at.of[1]];
        y[i] = j >= 0 && j < size ? x[at.of[0] + j * along] : Bits(0);
    }
};

template <class Bits>
KernelPtr make_gather_of(const Gather& op, const KernelRequest& request) {
    const TensorMeta &x = request.in[0], &index = request.in[1];
    GatherElement<Bits> element{};
    element.size = x.shape[op.dim];
    element.along = x.strides[op.dim];
    Shape x_strides = x.strides;
    x_strides[op.dim] = 0;
    const Shape strides[] = {x_strides, index.strides};
    element.index = make_index(index.shape, strides, Order::logical);
    const IndexCheck check(op, index, element.size);
    return make_cuda_kernel(
        request,
        [=, count = index.numel()](const Queue& queue, const KernelArgs& v) {
            check.enqueue(queue, v);
            GatherElement<Bits> bound = element;
            bound.x = v.input<Bits>(0);
            bound.indices = v.input<std::int64_t>(1);
            bound.y = v.output<Bits>(0);
            launch(queue, "gather", count, bound);
        },
        check.scratch_bytes());
}

KernelPtr make_gather(const Gather& op, KernelRequest& request) {
    if (request.in[0].opaque != nullptr) request.want_contiguous(0);
    request.want_contiguous(1);
    return visit_size(request.out[0].dtype, [&](auto bits) { return make_gather_of<decltype(bits)>(op, request); });
}

template <class T>
struct FillZero {
    T* y;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const { y[i] = T{}; }
};

/// Sums of the lines that the index has.
template <class T>
struct ScatterSumElement {
    StridedIndex<4> index;  // to: element of y, first element of its line in index and source, coordinate
    std::int64_t length, index_step, source_step;
    const T* source;
    const std::int64_t* indices;
    T* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        SumOf<decltype(upcast(T{}))> sum{};
        for (std::int64_t p = 0; p < length; ++p)
            if (indices[at.of[1] + p * index_step] == at.of[3]) sum.add(upcast(source[at.of[2] + p * source_step]));
        y[at.of[0]] = CastTo<T>::from(sum.value());
    }
};

template <class T>
KernelPtr make_scatter_sum_of(const ScatterSum& op, const KernelRequest& request) {
    const TensorMeta &source = request.in[0], &index = request.in[1], &y = request.out[0];
    ScatterSumElement<T> element{};
    element.length = index.shape[op.dim];
    element.index_step = index.strides[op.dim];
    element.source_step = source.strides[op.dim];
    Shape lines = index.shape, of_index = index.strides, of_source = source.strides, of_position = index.strides;
    lines[op.dim] = y.shape[op.dim];
    of_index[op.dim] = of_source[op.dim] = 0;
    for (int d = 0; d < lines.dims(); ++d) of_position[d] = d == op.dim ? 1 : 0;
    const Shape strides[] = {y.strides, of_index, of_source, of_position};
    element.index = make_index(lines, strides, Order::logical);
    const IndexCheck check(op, index, y.shape[op.dim]);
    return make_cuda_kernel(
        request,
        [=, outputs = y.numel(), count = lines.numel()](const Queue& queue, const KernelArgs& v) {
            check.enqueue(queue, v);
            ScatterSumElement<T> bound = element;
            bound.source = v.input<T>(0);
            bound.indices = v.input<std::int64_t>(1);
            bound.y = v.output<T>(0);
            if (count < outputs) launch(queue, "scatter_sum_zero", outputs, FillZero<T>{bound.y});
            launch(queue, "scatter_sum", count, bound);
        },
        check.scratch_bytes());
}

KernelPtr make_scatter_sum(const ScatterSum& op, KernelRequest& request) {
    request.want_all_contiguous();
    switch (request.out[0].dtype) {
        case DType::i64: return make_scatter_sum_of<std::int64_t>(op, request);
        case DType::i32: return make_scatter_sum_of<std::int32_t>(op, request);
        case DType::u8: return make_scatter_sum_of<std::uint8_t>(op, request);
        default:
            return visit_any_float(op.name, request.out[0].dtype,
                                   [&](auto zero) { return make_scatter_sum_of<decltype(zero)>(op, request); });
    }
}

/// The last positions of the lines that the index has.
struct LastPositionElement {
    StridedIndex<3> index;  // to: element of y, first element of its line in index, coordinate
    std::int64_t length, index_step;
    const std::int64_t* indices;
    std::int64_t* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        std::int64_t last = length;
        while (last > 0 && indices[at.of[1] + (last - 1) * index_step] != at.of[2]) --last;
        y[at.of[0]] = last;
    }
};

KernelPtr make_last_position(const LastPosition& op, KernelRequest& request) {
    request.want_all_contiguous();
    const TensorMeta &index = request.in[0], &y = request.out[0];
    LastPositionElement element{};
    element.length = index.shape[op.dim];
    element.index_step = index.strides[op.dim];
    Shape lines = index.shape, of_index = index.strides, of_position = index.strides;
    lines[op.dim] = y.shape[op.dim];
    of_index[op.dim] = 0;
    for (int d = 0; d < lines.dims(); ++d) of_position[d] = d == op.dim ? 1 : 0;
    const Shape strides[] = {y.strides, of_index, of_position};
    element.index = make_index(lines, strides, Order::logical);
    const IndexCheck check(op, index, y.shape[op.dim]);
    return make_cuda_kernel(
        request,
        [=, outputs = y.numel(), count = lines.numel()](const Queue& queue, const KernelArgs& v) {
            check.enqueue(queue, v, 0);
            LastPositionElement bound = element;
            bound.indices = v.input<std::int64_t>(0);
            bound.y = v.output<std::int64_t>(0);
            if (count < outputs) launch(queue, "last_position_zero", outputs, FillZero<std::int64_t>{bound.y});
            launch(queue, "last_position", count, bound);
        },
        check.scratch_bytes());
}

}  // namespace

void add_indexing_kernels(KernelTable& table) {
    table.add<IndexSelect, make_index_select>();
    table.add_half_types<IndexSelect, make_index_select>();
    table.add<IndexSelectBackward, make_index_select_backward>();
    table.add_half_types<IndexSelectBackward, make_index_select_backward>();
    table.add<Gather, make_gather>();
    table.add_half_types<Gather, make_gather>();
    table.add<ScatterSum, make_scatter_sum>();
    table.add_half_types<ScatterSum, make_scatter_sum>();
    table.add<LastPosition, make_last_position>();
}

}  // namespace lockstep::cuda
