// Cat, Split, Pad and OneHot.
#include <algorithm>
#include <vector>

#include "lockstep/ops/cuda/copy_element.h"
#include "lockstep/ops/cuda/find_bad_number.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/tensor_operations.h"

namespace lockstep::cuda {

namespace {

/// A piece of a whole tensor.
struct Piece {
    CopyPlan copy;
    std::int64_t offset;  // offset of its first element in the whole
    int which;
};

/// Copies that one launch makes, in chunks of rows.
template <class T>
struct CopyRows {
    static constexpr int width = chunk_elements(sizeof(T));
    static constexpr int most = 8;  // the arguments of a launch must fit into 4 KB
    struct Part {
        StridedIndex<2> chunks;
        T* to;
        const T* from;
        std::int64_t end;  ///< chunks up to those of this part
    };
    int count = 0;
    Part of[most];

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        int p = 0;
        while (i >= of[p].end) ++p;
        const Part& part = of[p];
        const auto at = part.chunks(p == 0 ? i : i - of[p - 1].end);
        T values[width];
        load_chunk(part.from + at.of[1], values);
        store_chunk(values, part.to + at.of[0]);
    }
};

/// Makes the copies of all pieces; `address` returns their operands. Pieces that consist of chunks share launches.
template <class T, class Addresses>
void copy_pieces(const Queue& queue, const char* name, const std::vector<Piece>& pieces, const Addresses& address) {
    CopyRows<T> rows{};
    const auto flush = [&] {
        if (rows.count > 0) launch(queue, name, rows.of[rows.count - 1].end, rows);
        rows.count = 0;
    };
    for (const Piece& piece : pieces) {
        const MapOperands<2> operands = address(piece);
        const MapPlan<2>& plan = piece.copy.map;
        auto* const to = static_cast<T*>(operands.y);
        const auto* const from = static_cast<const T*>(operands.x[0]);
        if (piece.copy.transpose.tiles() > 0 || plan.chunks.count == 0 || plan.repeated != 0 ||
            !has_aligned_chunks(plan, operands, sizeof(T), sizeof(T))) {
            enqueue_copy(queue, name, piece.copy, to, from);
            continue;
        }
        const std::int64_t before = rows.count == 0 ? 0 : rows.of[rows.count - 1].end;
        rows.of[rows.count++] = {plan.chunks, to, from, before + plan.chunks.count};
        if (rows.count == CopyRows<T>::most) flush();
    }
    flush();
}

KernelPtr make_cat(const Cat& op, KernelRequest& request) {
    TensorMeta& to = request.out[0];
    if (op.dim == 1 && std::all_of(request.in.begin(), request.in.end(), is_channels_last)) set_channels_last(to);
    std::vector<Piece> pieces;
    std::int64_t offset = 0;
    for (const TensorMeta& from : request.in) {
        pieces.push_back({CopyPlan(from.shape, to.strides, from.strides, size_of(to.dtype)), offset,
                          static_cast<int>(pieces.size())});
        offset += from.shape[op.dim] * to.strides[op.dim];
    }
    return visit_size(to.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [pieces](const Queue& queue, const KernelArgs& v) {
            copy_pieces<T>(queue, "cat", pieces, [&](const Piece& piece) {
                return MapOperands<2>{v.output<T>(0) + piece.offset, {v.input<T>(piece.which)}};
            });
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
            if (last) set_channels_last(to);
            pieces.push_back(
                {CopyPlan(to.shape, to.strides, from.strides, size_of(to.dtype)), offset, static_cast<int>(i)});
        }
        offset += op.sizes[i] * from.strides[op.dim];
    }
    return visit_size(from.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [pieces](const Queue& queue, const KernelArgs& v) {
            copy_pieces<T>(queue, "split", pieces, [&](const Piece& piece) {
                return MapOperands<2>{v.output<T>(piece.which), {v.input<T>(0) + piece.offset}};
            });
        });
    });
}

template <class T>
struct PadElement {
    int dims;
    bool narrow;  // numbers of elements are below 2^31
    // From the innermost dimension outwards.
    std::int64_t sizes[Shape::max_dims], strides[Shape::max_dims];  // strides of x
    std::int64_t before[Shape::max_dims];
    std::int64_t y_sizes[Shape::max_dims];
    Divisor by_y_sizes[Shape::max_dims];
    const T* x;
    T* y;  // row-major
    T value;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        std::int64_t rest = i, at = 0;
        bool inside = true;
        LOCKSTEP_UNROLL
        for (int d = 0; d < Shape::max_dims; ++d) {
            if (d >= dims) break;
            const std::int64_t quotient =
                narrow ? std::int64_t{by_y_sizes[d].quotient(static_cast<std::uint32_t>(rest))} : rest / y_sizes[d];
            const std::int64_t position = rest - quotient * y_sizes[d] - before[d];
            inside = inside && position >= 0 && position < sizes[d];
            at += position * strides[d];
            rest = quotient;
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
        element.narrow = y.numel() < std::int64_t{1} << 31;
        for (int d = 0; d < element.dims; ++d) {
            const int from = element.dims - 1 - d;
            element.sizes[d] = x.shape[from];
            element.strides[d] = x.strides[from];
            element.before[d] = op.before[from];
            element.y_sizes[d] = y.shape[from];
            if (element.narrow && y.numel() > 0)
                element.by_y_sizes[d] = Divisor(static_cast<std::uint32_t>(y.shape[from]));
        }
        element.value = CastTo<T>::from(op.value);
        return make_cuda_kernel(request, [element, count = y.numel()](const Queue& queue, const KernelArgs& v) {
            PadElement<T> bound = element;
            bound.x = v.input<T>(0);
            bound.y = v.output<T>(0);
            launch(queue, "pad", count, bound);
        });
    });
}

template <class T>
struct OneHotElement {
    StridedIndex<2> index;  // number of an element of y, and its class
    const std::int64_t* x;
    T* y;  // row-major

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        y[i] = x[at.of[0]] == at.of[1] ? T(1) : T(0);
    }
};

template <class T>
KernelPtr one_hot_kernel(const OneHot& op, const KernelRequest& request) {
    const TensorMeta &x = request.in[0], &y = request.out[0];
    const Shape x_strides[] = {x.strides};
    FindBadNumber find{};
    find.index = make_index(x.shape, x_strides, Order::logical);
    find.size = y.shape[op.dim];
    find.per_row = x.shape.empty() ? 1 : std::max<std::int64_t>(1, x.numel() / std::max<std::int64_t>(1, x.shape[0]));
    find.batch = true;
    find.code = StatusCode::target_out_of_range;
    Shape of_numbers = x.strides, of_classes = y.shape;
    of_numbers.insert(op.dim, 0);
    for (int d = 0; d < y.shape.dims(); ++d) of_classes[d] = d == op.dim ? 1 : 0;
    const Shape y_strides[] = {of_numbers, of_classes};
    OneHotElement<T> element{};
    element.index = make_index(y.shape, y_strides, Order::logical);
    const ReducePlan plan = ReducePlan::make(1, x.numel(), false);
    return make_cuda_kernel(
        request,
        [=, count = y.numel()](const Queue& queue, const KernelArgs& v) {
            find_bad_number(queue, "one_hot_check", plan, find, v.input<std::int64_t>(0), v);
            OneHotElement<T> bound = element;
            bound.x = v.input<std::int64_t>(0);
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

void add_concat_kernels(KernelTable& table) {
    table.add<Cat, make_cat>();
    table.add<Split, make_split>();
    table.add<Pad, make_pad>();
    table.add<OneHot, make_one_hot>();
    table.add_half_types<Cat, make_cat>();
    table.add_half_types<Split, make_split>();
    table.add_half_types<Pad, make_pad>();
}

}  // namespace lockstep::cuda
