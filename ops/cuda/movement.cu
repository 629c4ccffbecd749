// Copies between layouts and dtypes.
#include "lockstep/ops/cuda/movement.h"

#include "lockstep/ops/cuda/copy_element.h"
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

/// From any dtype: the switch is the same for all threads, and spares 56 kernels.
template <class T>
struct ConvertElement {
    StridedIndex<2> index;  // to, from
    T* to;
    const void* from;
    DType from_dtype;

    template <class From>
    LOCKSTEP_ELEMENT T load(std::int64_t at) const {
        return Narrow<T>::from(widen(static_cast<const From*>(from)[at]));
    }
    LOCKSTEP_ELEMENT T convert(std::int64_t at) const {
        switch (from_dtype) {
            case DType::f64: return load<double>(at);
            case DType::f16: return load<Half>(at);
            case DType::bf16: return load<BFloat16>(at);
            case DType::i32: return load<std::int32_t>(at);
            case DType::i64: return load<std::int64_t>(at);
            case DType::u8: return load<std::uint8_t>(at);
            case DType::boolean: return load<bool>(at);
            case DType::f32: break;
        }
        return load<float>(at);
    }
    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        to[at.of[0]] = convert(at.of[1]);
    }
};

template <class T>
struct FillElement {
    StridedIndex<1> index;
    T* to;
    T value;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const { to[index(i).of[0]] = value; }
};

template <class T>
struct AddBias {
    T* y;
    const T* bias;
    bool relu;
    std::int64_t channels, inner;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        auto value = widen(y[i]);
        if (bias != nullptr) value += widen(bias[i / inner % channels]);
        y[i] = Narrow<T>::from(relu ? functor::Relu().value(value) : value);
    }
};

KernelPtr make_reorder(const Reorder& /*op*/, KernelRequest& request) {
    const TensorMeta& to = request.out[0];
    const Shape strides[] = {to.strides, broadcast_strides(request.in[0], to.shape)};
    const StridedIndex<2> index = make_index(to.shape, strides, Order::memory);
    const DType from_dtype = request.in[0].dtype;
    if (from_dtype == to.dtype)
        return visit_size(to.dtype, [&](auto zero) -> KernelPtr {
            using T = decltype(zero);
            return make_cuda_kernel(request, [index](const Queue& queue, const KernelArgs& v) {
                launch(queue, "reorder", index.count, CopyElement<T>{index, v.output<T>(0), v.input<T>(0)});
            });
        });
    return visit_dtype(to.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        return make_cuda_kernel(request, [index, from_dtype](const Queue& queue, const KernelArgs& v) {
            launch(queue, "reorder", index.count, ConvertElement<T>{index, v.output<T>(0), v.in[0], from_dtype});
        });
    });
}

KernelPtr make_fill(const Fill& op, KernelRequest& request) {
    const TensorMeta& to = request.out[0];
    const Shape strides[] = {to.strides};
    const StridedIndex<1> index = make_index(to.shape, strides, Order::memory);
    return visit_dtype(to.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        const T value = Narrow<T>::from(op.value);
        return make_cuda_kernel(request, [index, value](const Queue& queue, const KernelArgs& v) {
            launch(queue, "fill", index.count, FillElement<T>{index, v.output<T>(0), value});
        });
    });
}

}  // namespace

void copy_strided(const Queue& queue, const char* name, DType dtype, const Shape& shape, void* to,
                  const Shape& to_strides, const void* from, const Shape& from_strides) {
    const Shape strides[] = {to_strides, from_strides};
    const StridedIndex<2> index = make_index(shape, strides, Order::memory);
    visit_size(dtype, [&](auto zero) {
        using T = decltype(zero);
        launch(queue, name, index.count, CopyElement<T>{index, static_cast<T*>(to), static_cast<const T*>(from)});
    });
}

void add_bias(const Queue& queue, DType dtype, void* y, const void* bias, Activation activation, std::int64_t elements,
              std::int64_t channels, std::int64_t inner) {
    visit_any_float("add_bias", dtype, [&](auto zero) {
        using T = decltype(zero);
        launch(queue, "add_bias", elements,
               AddBias<T>{static_cast<T*>(y), static_cast<const T*>(bias), activation == Activation::relu, channels,
                          inner});
    });
}

void add_copy_kernels(KernelTable& table) {
    table.add<Reorder, make_reorder>();
    table.add<Fill, make_fill>();
    table.add_short_floats<Reorder, make_reorder>();
    table.add_short_floats<Fill, make_fill>();
}

}  // namespace lockstep::cuda
