// Operations on every element alone.
#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/internal/binary_functions.h"
#include "lockstep/ops/internal/dropout_operations.h"
#include "lockstep/ops/internal/elementwise_operations.h"
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/ops/internal/type_list.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cuda {

namespace {

// ---- two inputs -------------------------------------------------------------------------------------------------

template <class T, class F>
struct BinaryElement {
    StridedIndex<3> index;  // y, a, b
    T* y;
    const T* a;
    const T* b;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        y[at.of[0]] = Narrow<T>::from(F().value(widen(a[at.of[1]]), widen(b[at.of[2]])));
    }
};

template <class F>
KernelPtr make_pairwise(std::string_view name, const KernelRequest& request) {
    const TensorMeta& y = request.out[0];
    const Shape strides[] = {y.strides, broadcast_strides(request.in[0], y.shape),
                             broadcast_strides(request.in[1], y.shape)};
    const StridedIndex<3> index = make_index(y.shape, strides, Order::memory);
    return visit_dtype(y.dtype, [&](auto zero) -> KernelPtr {
        using T = decltype(zero);
        if constexpr (std::is_same_v<T, bool> || (std::is_integral_v<T> && std::is_same_v<F, functor::Div>)) {
            refuse_dtype(name, y.dtype);
        } else {
            return make_cuda_kernel(request, [index](const Queue& queue, const KernelArgs& v) {
                launch(queue, "binary", index.count,
                       BinaryElement<T, F>{index, v.output<T>(0), v.input<T>(0), v.input<T>(1)});
            });
        }
    });
}

// ---- one input --------------------------------------------------------------------------------------------------

template <class T, class F>
struct UnaryElement {
    StridedIndex<2> index;  // y, x
    F function;
    T* y;
    const T* x;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        y[at.of[0]] = function.value(x[at.of[1]]);
    }
};

template <class T, class F>
struct UnaryBackwardElement {
    StridedIndex<3> index;  // dx, dy, saved
    F function;
    T* dx;
    const T* dy;
    const T* saved;  // dy where nothing was saved

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        dx[at.of[0]] = function.gradient(dy[at.of[1]], saved[at.of[2]]);
    }
};

template <class T>
struct AffineElement {
    StridedIndex<2> index;  // y, x
    T scale, shift;
    T* y;
    const T* x;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        y[at.of[0]] = element::affine(x[at.of[1]], scale, shift);
    }
};

template <class T>
struct SquaredErrorBackwardElement {
    StridedIndex<3> index;  // d, a, b
    T* d;
    const T* gradient;
    const T* a;
    const T* b;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = index(i);
        d[at.of[0]] = T(2) * *gradient * (a[at.of[1]] - b[at.of[2]]);
    }
};

StridedIndex<2> index_of(const TensorMeta& y, const TensorMeta& x) {
    const Shape strides[] = {y.strides, x.strides};
    return make_index(y.shape, strides, Order::memory);
}

StridedIndex<3> index_of(const TensorMeta& y, const TensorMeta& a, const TensorMeta& b) {
    const Shape strides[] = {y.strides, a.strides, b.strides};
    return make_index(y.shape, strides, Order::memory);
}

// ---- masks ------------------------------------------------------------------------------------------------------

/// Four neighbours of the counter share one Philox block, so one thread draws them.
template <class T>
struct MaskBlock {
    T* mask;
    std::int64_t count;
    std::uint64_t counter;  // of element 0
    const StepState* step;
    std::uint32_t ordinal;
    float p;
    T keep;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::uint64_t block = (counter >> 2) + static_cast<std::uint64_t>(i);
        const auto bits = philox(*step, ordinal, block);
        for (unsigned k = 0; k < 4; ++k) {
            const auto e = static_cast<std::int64_t>(block * 4 + k - counter);
            if (e >= 0 && e < count) mask[e] = element::mask_value(bits[k], p, keep);
        }
    }
};

template <class F>
KernelPtr make_binary(const Binary<F>& op, KernelRequest& request) {
    for (const TensorMeta& in : request.in)
        if (in.shape == request.out[0].shape) {
            lay_out_like(request.out[0], in);
            break;
        }
    return make_pairwise<F>(op.name, request);
}

template <class F>
KernelPtr make_unary(const Unary<F>& op, KernelRequest& request) {
    lay_out_like(request.out[0], request.in[0]);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [index = index_of(request.out[0], request.in[0]), function = op.function](
                                             const Queue& queue, const KernelArgs& v) {
            launch(queue, F::name, index.count, UnaryElement<T, F>{index, function, v.output<T>(0), v.input<T>(0)});
        });
    });
}

template <class F>
KernelPtr make_unary_backward(const UnaryBackward<F>& op, KernelRequest& request) {
    constexpr int saved = F::saves == Saves::nothing ? 0 : 1;
    const TensorMeta& laid_out_as = request.in[saved];
    lay_out_like(request.out[0], laid_out_as);
    return visit_float(op.name, laid_out_as.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto index = index_of(request.out[0], request.in[0], laid_out_as);
        return make_cuda_kernel(request, [index, function = op.function](const Queue& queue, const KernelArgs& v) {
            launch(queue, F::backward_name, index.count,
                   UnaryBackwardElement<T, F>{index, function, v.output<T>(0), v.input<T>(0), v.input<T>(saved)});
        });
    });
}

template <class... Functions>
void add_each_binary(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add<Binary<Functions>, make_binary<Functions>>(), ...);
}

template <class... Functions>
void add_each_unary(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add<Unary<Functions>, make_unary<Functions>>(), ...);
    (table.add<UnaryBackward<Functions>, make_unary_backward<Functions>>(), ...);
}

KernelPtr make_accumulate(const Accumulate& op, KernelRequest& request) {
    return make_pairwise<functor::Add>(op.name, request);
}

KernelPtr make_affine(const Affine& op, KernelRequest& request) {
    lay_out_like(request.out[0], request.in[0]);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const AffineElement<T> functor{index_of(request.out[0], request.in[0]), static_cast<T>(op.scale),
                                       static_cast<T>(op.shift), nullptr, nullptr};
        return make_cuda_kernel(request, [functor](const Queue& queue, const KernelArgs& v) {
            AffineElement<T> bound = functor;
            bound.y = v.output<T>(0);
            bound.x = v.input<T>(0);
            launch(queue, "affine", bound.index.count, bound);
        });
    });
}

KernelPtr make_squared_error_backward(const SquaredErrorBackward& op, KernelRequest& request) {
    lay_out_like(request.out[0], request.in[1]);
    return visit_float(op.name, request.in[1].dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto index = index_of(request.out[0], request.in[1], request.in[2]);
        return make_cuda_kernel(request, [index](const Queue& queue, const KernelArgs& v) {
            launch(queue, "squared_error_backward", index.count,
                   SquaredErrorBackwardElement<T>{index, v.output<T>(0), v.input<T>(0), v.input<T>(1), v.input<T>(2)});
        });
    });
}

KernelPtr make_dropout_mask(const DropoutMask& op, KernelRequest& request) {
    const TensorMeta& mask = request.out[0];
    const std::int64_t count = mask.numel();
    const std::int64_t row_size = op.batch && count > 0 ? count / mask.shape[0] : 0;
    return visit_float(op.name, mask.dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [count, row_size, p = op.p, batch = op.batch](const Queue& queue,
                                                                                       const KernelArgs& v) {
            const std::uint64_t counter = element::mask_counter(batch, v.first_row, row_size, v.shard);
            const auto blocks =
                static_cast<std::int64_t>(((counter + static_cast<std::uint64_t>(count) + 3) >> 2) - (counter >> 2));
            launch(queue, "dropout_mask", blocks,
                   MaskBlock<T>{v.output<T>(0), count, counter, v.step, v.ordinal, static_cast<float>(p),
                                element::mask_keep<T>(p)});
        });
    });
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
    table.add<Accumulate, make_accumulate>();
    add_each_binary(table, list_of<BinaryFunctions>);
    add_each_unary(table, list_of<UnaryFunctions>);
    table.add<Affine, make_affine>();
    table.add<SquaredErrorBackward, make_squared_error_backward>();
    table.add<DropoutMask, make_dropout_mask>();
}

}  // namespace lockstep::cuda
