// Elementwise operations.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/short_gelu.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/ops/internal/type_list.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

// ---- functions of elements, in the type of the arithmetic --------------------------------------------------------

template <class F>
struct Pairwise {
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T a, T b) const {
        return F().value(a, b);
    }
};

template <class F>
struct ValueOf {
    F function;
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T x) const {
        return function.value(x);
    }
};

template <class F>
struct GradientOf {
    F function;
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T dy, T saved) const {
        return function.gradient(dy, saved);
    }
    template <class T>
    LOCKSTEP_HD_INLINE T operator()(T dy) const {
        return function.gradient(dy, dy);  // nothing was saved
    }
};

template <class T>
struct AffineOf {
    T scale, shift;
    LOCKSTEP_HD_INLINE T operator()(T x) const { return element::affine(x, scale, shift); }
};

template <class Stored>
struct SquaredErrorGradient {
    using T = UpcastType<Stored>;
    const Stored* gradient;
    LOCKSTEP_HD_INLINE T operator()(T a, T b) const { return T(2) * upcast(*gradient) * (a - b); }
};

/// y, whose elements have the type T, as a function of inputs.
template <class T, class... Inputs>
auto map_of(const TensorMeta& y, const Inputs&... inputs) {
    const Shape strides[] = {y.strides, broadcast_strides(inputs, y.shape)...};
    return make_map(y.shape, strides, chunk_elements(sizeof(T)));
}

// ---- two inputs -------------------------------------------------------------------------------------------------

template <class F>
KernelPtr make_pairwise(std::string_view name, const KernelRequest& request) {
    const TensorMeta& y = request.out[0];
    return visit_dtype(y.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        if constexpr (std::is_same_v<T, bool> || (std::is_integral_v<T> && std::is_same_v<F, functor::Div>)) {
            refuse_dtype(name, y.dtype);
        } else {
            return make_cuda_kernel(request, [plan = map_of<T>(y, request.in[0], request.in[1])](const Queue& queue,
                                                                                                 const KernelArgs& v) {
                map<T, T, by_rows>(queue, "binary", plan, Pairwise<F>{}, MapOperands<3>{v.out[0], {v.in[0], v.in[1]}});
            });
        }
    });
}

template <class F>
KernelPtr make_binary(const Binary<F>& op, KernelRequest& request) {
    for (const TensorMeta& in : request.in)
        if (in.shape == request.out[0].shape) {
            set_layout_like(request.out[0], in);
            break;
        }
    return make_pairwise<F>(op.name, request);
}

template <class F>
KernelPtr make_unary(const Unary<F>& op, KernelRequest& request) {
    set_layout_like(request.out[0], request.in[0]);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const ValueOf<FunctionOf<F, T>> value{FunctionOf<F, T>(op.function)};
        return make_cuda_kernel(
            request, [plan = map_of<T>(request.out[0], request.in[0]), value](const Queue& queue, const KernelArgs& v) {
                map<T, T>(queue, F::name, plan, value, MapOperands<2>{v.out[0], {v.in[0]}});
            });
    });
}

template <class F>
KernelPtr make_unary_backward(const UnaryBackward<F>& op, KernelRequest& request) {
    if constexpr (F::saves == Saves::nothing) {
        set_layout_like(request.out[0], request.in[0]);
        return visit_any_float(op.name, request.out[0].dtype, [&](auto zero) {
            using T = decltype(zero);
            const GradientOf<FunctionOf<F, T>> gradient{FunctionOf<F, T>(op.function)};
            return make_cuda_kernel(request, [plan = map_of<T>(request.out[0], request.in[0]), gradient](
                                                 const Queue& queue, const KernelArgs& v) {
                map<T, T>(queue, F::backward_name, plan, gradient, MapOperands<2>{v.out[0], {v.in[0]}});
            });
        });
    } else {
        set_layout_like(request.out[0], request.in[1]);
        return visit_any_float(op.name, request.out[0].dtype, [&](auto zero) {
            using T = decltype(zero);
            const GradientOf<FunctionOf<F, T>> gradient{FunctionOf<F, T>(op.function)};
            return make_cuda_kernel(request, [plan = map_of<T>(request.out[0], request.in[0], request.in[1]), gradient](
                                                 const Queue& queue, const KernelArgs& v) {
                map<T, T>(queue, F::backward_name, plan, gradient, MapOperands<3>{v.out[0], {v.in[0], v.in[1]}});
            });
        });
    }
}

template <class... Functions>
void add_each_binary(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add<Binary<Functions>, make_binary<Functions>>(), ...);
    (table.add_half_types<Binary<Functions>, make_for_one_dtype<Binary<Functions>, make_binary<Functions>>>(), ...);
}

template <class... Functions>
void add_each_unary(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add<Unary<Functions>, make_unary<Functions>>(), ...);
    (table.add<UnaryBackward<Functions>, make_unary_backward<Functions>>(), ...);
    (table.add_half_types<Unary<Functions>, make_for_one_dtype<Unary<Functions>, make_unary<Functions>>>(), ...);
    (table.add_half_types<UnaryBackward<Functions>,
                          make_for_one_dtype<UnaryBackward<Functions>, make_unary_backward<Functions>>>(),
     ...);
}

KernelPtr make_accumulate(const Accumulate& op, KernelRequest& request) {
    set_layout_like(request.out[0], request.in[0]);
    return make_pairwise<functor::Add>(op.name, request);
}

KernelPtr make_affine(const Affine& op, KernelRequest& request) {
    set_layout_like(request.out[0], request.in[0]);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        using Number = UpcastType<T>;
        const AffineOf<Number> affine{static_cast<Number>(op.scale), static_cast<Number>(op.shift)};
        return make_cuda_kernel(request, [plan = map_of<T>(request.out[0], request.in[0]), affine](
                                             const Queue& queue, const KernelArgs& v) {
            map<T, T>(queue, "affine", plan, affine, MapOperands<2>{v.out[0], {v.in[0]}});
        });
    });
}

KernelPtr make_squared_error_backward(const SquaredErrorBackward& op, KernelRequest& request) {
    set_layout_like(request.out[0], request.in[1]);
    return visit_any_float(op.name, request.in[1].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [plan = map_of<T>(request.out[0], request.in[1], request.in[2])](
                                             const Queue& queue, const KernelArgs& v) {
            map<T, T>(queue, "squared_error_backward", plan, SquaredErrorGradient<T>{v.input<T>(0)},
                      MapOperands<3>{v.out[0], {v.in[1], v.in[2]}});
        });
    });
}

/// Null if the dtypes differ, including those of scalars.
KernelPtr make_half_squared_error_backward(const SquaredErrorBackward& op, KernelRequest& request) {
    for (const TensorMeta& in : request.in)
        if (in.dtype != request.out[0].dtype) return nullptr;
    return make_squared_error_backward(op, request);
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
    table.add<Accumulate, make_accumulate>();
    table.add_half_types<Accumulate, make_for_one_dtype<Accumulate, make_accumulate>>();
    add_each_binary(table, list_of<BinaryFunctions>);
    add_each_unary(table, list_of<UnaryFunctions>);
    table.add<Affine, make_affine>();
    table.add_half_types<Affine, make_for_one_dtype<Affine, make_affine>>();
    table.add<SquaredErrorBackward, make_squared_error_backward>();
    table.add_half_types<SquaredErrorBackward, make_half_squared_error_backward>();
}

}  // namespace lockstep::cuda
