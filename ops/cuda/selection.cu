// Comparisons, choices between tensors, and rare functions of one and two numbers.
#include "lockstep/ops/internal/selection_operations.h"

#include <algorithm>

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/find_bad_number.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/internal/bivariate.h"
#include "lockstep/ops/internal/special_functions.h"
#include "lockstep/ops/internal/visit_size.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cuda {

namespace {

struct IsRelated {
    Relations relations;
    template <class T>
    LOCKSTEP_HD_INLINE bool operator()(T a, T b) const {
        return relations.hold(a, b);
    }
};

template <class Op>
struct OfTwoNumbers {
    Op of;
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T a, T b) const {
        return of.value(a, b);
    }
};

struct OfTwoIntegers {
    IntegerBivariate of;
    LOCKSTEP_HD_INLINE std::int64_t operator()(std::int64_t a, std::int64_t b) const { return of.value(a, b); }
};

struct OfOneNumber {
    SpecialFunction of;
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T x) const {
        return of.value(x);
    }
};

/// Operands of Where: y, condition, a, b; elements as numbers of the same size.
template <class Bits>
struct Choice {
    Bits* y;
    const bool* condition;
    const Bits *a, *b;
};

template <class Bits>
struct WhereChunk {
    static constexpr int width = chunk_elements(sizeof(Bits));
    StridedIndex<4> index;
    unsigned repeated;
    Choice<Bits> on;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        bool condition[width];
        Bits a[width], b[width];
        load_or_repeat(on.condition + at.of[1], (repeated >> 1 & 1u) != 0, condition);
        load_or_repeat(on.a + at.of[2], (repeated >> 2 & 1u) != 0, a);
        load_or_repeat(on.b + at.of[3], (repeated >> 3 & 1u) != 0, b);
        LOCKSTEP_UNROLL
        for (int k = 0; k < width; ++k) a[k] = condition[k] ? a[k] : b[k];
        store_chunk(a, on.y + at.of[0]);
    }
};

template <class Bits>
struct WhereElement {
    StridedIndex<4> index;
    Choice<Bits> on;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const auto at = index(i);
        on.y[at.of[0]] = on.condition[at.of[1]] ? on.a[at.of[2]] : on.b[at.of[3]];
    }
};

/// Gives a new output the arrangement of the first input of its shape.
void arrange_output(KernelRequest& request) {
    for (const TensorMeta& in : request.in)
        if (in.shape == request.out[0].shape) return set_layout_like(request.out[0], in);
}

KernelPtr make_compare(const Compare& op, KernelRequest& request) {
    arrange_output(request);
    const TensorMeta &a = request.in[0], &b = request.in[1], &y = request.out[0];
    const Shape strides[] = {y.strides, broadcast_strides(a, y.shape), broadcast_strides(b, y.shape)};
    return visit_dtype(a.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [plan = make_map(y.shape, strides, chunk_elements(sizeof(T))),
                                          related = IsRelated{op.relations}](const Queue& queue, const KernelArgs& v) {
            map<bool, T, by_rows>(queue, "compare", plan, related, MapOperands<3>{v.out[0], {v.in[0], v.in[1]}});
        });
    });
}

template <class Op>
KernelPtr make_of_two_numbers(const Op& op, KernelRequest& request) {
    arrange_output(request);
    const TensorMeta &a = request.in[0], &b = request.in[1], &y = request.out[0];
    const Shape strides[] = {y.strides, broadcast_strides(a, y.shape), broadcast_strides(b, y.shape)};
    return visit_float(op.name, a.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [plan = make_map(y.shape, strides, chunk_elements(sizeof(T))),
                                          of = OfTwoNumbers<Op>{op}](const Queue& queue, const KernelArgs& v) {
            map<T, T, by_rows>(queue, Op::name, plan, of, MapOperands<3>{v.out[0], {v.in[0], v.in[1]}});
        });
    });
}

/// The check of divisors precedes the quotients.
KernelPtr make_integer_bivariate(const IntegerBivariate& op, KernelRequest& request) {
    arrange_output(request);
    request.want_contiguous(1);
    const TensorMeta &a = request.in[0], &b = request.in[1], &y = request.out[0];
    const Shape strides[] = {y.strides, broadcast_strides(a, y.shape), broadcast_strides(b, y.shape)};
    const Shape of_b[] = {b.strides};
    FindBadNumber find{};
    find.index = make_index(b.shape, of_b, Order::logical);
    find.per_row = b.shape.empty() ? 1 : std::max<std::int64_t>(1, b.numel() / std::max<std::int64_t>(1, b.shape[0]));
    find.batch = b.batch;
    find.divisors = true;
    find.code = StatusCode::division_by_zero;
    const ReducePlan plan = ReducePlan::make(1, b.numel(), false);
    return make_cuda_kernel(
        request,
        [map_plan = make_map(y.shape, strides, chunk_elements(sizeof(std::int64_t))), of = OfTwoIntegers{op}, find,
         plan](const Queue& queue, const KernelArgs& v) {
            if (of.of.divides()) find_bad_number(queue, "divisor_check", plan, find, v.input<std::int64_t>(1), v);
            map<std::int64_t, std::int64_t, by_rows>(queue, "integer_bivariate", map_plan, of,
                                                     MapOperands<3>{v.out[0], {v.in[0], v.in[1]}});
        },
        plan.scratch_bytes<FindBadNumber>());
}

KernelPtr make_special_function(const SpecialFunction& op, KernelRequest& request) {
    arrange_output(request);
    const TensorMeta &x = request.in[0], &y = request.out[0];
    const Shape strides[] = {y.strides, broadcast_strides(x, y.shape)};
    return visit_float(op.name, x.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [plan = make_map(y.shape, strides, chunk_elements(sizeof(T))),
                                          of = OfOneNumber{op}](const Queue& queue, const KernelArgs& v) {
            map<T, T>(queue, "special_function", plan, of, MapOperands<2>{v.out[0], {v.in[0]}});
        });
    });
}

template <class Bits>
KernelPtr make_where_of(const KernelRequest& request) {
    const Shape& shape = request.out[0].shape;
    const Shape strides[] = {request.out[0].strides, broadcast_strides(request.in[0], shape),
                             broadcast_strides(request.in[1], shape), broadcast_strides(request.in[2], shape)};
    return make_cuda_kernel(request, [plan = make_map(shape, strides, WhereChunk<Bits>::width)](const Queue& queue,
                                                                                                const KernelArgs& v) {
        const Choice<Bits> on{v.output<Bits>(0), v.input<bool>(0), v.input<Bits>(1), v.input<Bits>(2)};
        const auto aligned = [&](const void* address, int t, std::size_t bytes) {
            return (plan.repeated >> t & 1u) != 0 || is_aligned(address, static_cast<std::size_t>(plan.width) * bytes);
        };
        if (plan.chunks.count > 0 && aligned(on.y, 0, sizeof(Bits)) && aligned(on.condition, 1, 1) &&
            aligned(on.a, 2, sizeof(Bits)) && aligned(on.b, 3, sizeof(Bits)))
            launch(queue, "where", plan.chunks.count, WhereChunk<Bits>{plan.chunks, plan.repeated, on});
        else
            launch(queue, "where", plan.elements.count, WhereElement<Bits>{plan.elements, on});
    });
}

KernelPtr make_where(const Where&, KernelRequest& request) {
    arrange_output(request);
    return visit_size(request.out[0].dtype, [&](auto bits) { return make_where_of<decltype(bits)>(request); });
}

}  // namespace

void add_selection_kernels(KernelTable& table) {
    table.add<Compare, make_compare>();
    table.add_half_types<Compare, make_compare>();
    table.add<Bivariate, make_of_two_numbers<Bivariate>>();
    table.add<Lerp, make_of_two_numbers<Lerp>>();
    table.add<IntegerBivariate, make_integer_bivariate>();
    table.add<SpecialFunction, make_special_function>();
    table.add<Where, make_where>();
    table.add_half_types<Where, make_where>();
}

}  // namespace lockstep::cuda
