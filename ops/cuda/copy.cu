// Copies between layouts and dtypes.
#include "lockstep/ops/cuda/copy.h"

#include <algorithm>
#include <cstring>

#include "lockstep/ops/cuda/copy_element.h"
#include "lockstep/ops/cuda/filter.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

/// Calls visit(From{}): all threads take the same branch of the switch, which saves 56 kernels.
template <class Visit>
LOCKSTEP_HD_INLINE void visit_source(DType from, const Visit& visit) {
    switch (from) {
        case DType::f64: return visit(double{});
        case DType::f16: return visit(Half{});
        case DType::bf16: return visit(BFloat16{});
        case DType::i32: return visit(std::int32_t{});
        case DType::i64: return visit(std::int64_t{});
        case DType::u8: return visit(std::uint8_t{});
        case DType::boolean: return visit(bool{});
        case DType::f32: break;
    }
    visit(float{});
}

template <class T>
struct ConvertElements {
    MapOperands<2> operands;
    DType from;
    StridedIndex<2> index;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        visit_source(from, [&](auto zero) { map_element<T, decltype(zero)>(operands, Identity{}, index, i); });
    }
};
template <class T>
struct ConvertDense {
    MapOperands<2> operands;
    DType from;
    std::int64_t count, threads;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        visit_source(from, [&](auto zero) { map_dense<T, decltype(zero)>(operands, Identity{}, count, threads, i); });
    }
};

template <class T>
struct Constant {
    T value;
    LOCKSTEP_HD_INLINE T operator()() const { return value; }
};

template <class T>
struct BiasOf {
    bool relu;
    LOCKSTEP_HD_INLINE T operator()(T y) const { return relu ? functor::Relu().value(y) : y; }
    LOCKSTEP_HD_INLINE T operator()(T y, T bias) const { return (*this)(y + bias); }
};

KernelPtr make_conversion(const KernelRequest& request, const Shape& from_strides) {
    const TensorMeta& to = request.out[0];
    const DType from = request.in[0].dtype;
    const Shape strides[] = {to.strides, from_strides};
    const MapPlan<2> plan = make_map(to.shape, strides, chunk_elements(std::max(size_of(to.dtype), size_of(from))));
    return visit_dtype(to.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [plan, from](const Queue& queue, const KernelArgs& v) {
            const MapOperands<2> operands{v.out[0], {v.in[0]}};
            const std::int64_t count = plan.elements.count;
            if (!plan.dense || !has_aligned_chunks(plan, operands, sizeof(T), size_of(from)))
                return launch(queue, "reorder", count, ConvertElements<T>{operands, from, plan.elements});
            const std::int64_t threads = dense_threads(count, plan.width);
            launch(queue, "reorder", threads, ConvertDense<T>{operands, from, count, threads});
        });
    });
}

/// Whether it is a copy of weights to cuDNN's order for which there are kernels.
bool is_to_last_filter(const TensorMeta& from, const TensorMeta& to) {
    if (to.shape.dims() != 4 || !is_floating(to.dtype) || to.dtype == DType::f64) return false;
    const std::int64_t taps = to.shape[2] * to.shape[3];
    return (taps == 4 || taps == 9) && from.is_contiguous() && !to.is_contiguous() && is_channels_last(to);
}

KernelPtr make_reorder(const Reorder& /*op*/, KernelRequest& request) {
    const TensorMeta& to = request.out[0];
    const Shape from_strides = broadcast_strides(request.in[0], to.shape);
    if (request.in[0].dtype != to.dtype) return make_conversion(request, from_strides);
    if (is_to_last_filter(request.in[0], to))
        return make_cuda_kernel(
            request, [filter = FilterShape::of(to.shape), dtype = to.dtype](const Queue& queue, const KernelArgs& v) {
                convert_filters(queue, dtype, filter, true, v.out[0], v.in[0]);
            });
    const CopyPlan plan(to.shape, to.strides, from_strides, size_of(to.dtype));
    return visit_size(to.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [plan](const Queue& queue, const KernelArgs& v) {
            enqueue_copy(queue, "reorder", plan, v.output<T>(0), v.input<T>(0));
        });
    });
}

KernelPtr make_fill(const Fill& op, KernelRequest& request) {
    const TensorMeta& to = request.out[0];
    const Shape strides[] = {to.strides};
    const MapPlan<1> plan = make_map(to.shape, strides, chunk_elements(size_of(to.dtype)));
    std::uint64_t bits = 0;
    visit_dtype(to.dtype, [&](auto zero) {
        const auto value = CastTo<decltype(zero)>::from(op.value);
        std::memcpy(&bits, &value, sizeof value);
    });
    return visit_size(to.dtype, [&](auto value) -> KernelPtr {
        using T = decltype(value);
        std::memcpy(&value, &bits, sizeof value);
        return make_cuda_kernel(request, [plan, value](const Queue& queue, const KernelArgs& v) {
            map<T, T>(queue, "fill", plan, Constant<T>{value}, MapOperands<1>{v.out[0], {nullptr}});
        });
    });
}

}  // namespace

void copy_strided(const Queue& queue, const char* name, DType dtype, const Shape& shape, void* to,
                  const Shape& to_strides, const void* from, const Shape& from_strides) {
    const CopyPlan plan(shape, to_strides, from_strides, size_of(dtype));
    visit_size(dtype, [&](auto zero) {
        using T = decltype(zero);
        enqueue_copy(queue, name, plan, static_cast<T*>(to), static_cast<const T*>(from));
    });
}

void add_bias(const Queue& queue, DType dtype, void* y, const void* bias, Activation activation, std::int64_t elements,
              std::int64_t channels, std::int64_t inner) {
    if (elements == 0) return;
    const Shape shape{elements / (channels * inner), channels, inner};
    const Shape dense = shape.contiguous_strides();
    visit_any_float("add_bias", dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = chunk_elements(sizeof(T));
        const BiasOf<UpcastType<T>> function{activation == Activation::relu};
        if (bias == nullptr)
            return map<T, T>(queue, "add_bias", make_map<2>(shape, {dense, dense}, width), function,
                             MapOperands<2>{y, {y}});
        const MapPlan<3> plan = make_map<3>(shape, {dense, dense, {0, 1, 0}}, width);
        map<T, T, by_rows>(queue, "add_bias", plan, function, MapOperands<3>{y, {y, bias}});
    });
}

void add_copy_kernels(KernelTable& table) {
    table.add<Reorder, make_reorder>();
    table.add<Fill, make_fill>();
    table.add_half_types<Reorder, make_reorder>();
    table.add_half_types<Fill, make_fill>();
}

}  // namespace lockstep::cuda
