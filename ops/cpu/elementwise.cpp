// Binary, Unary, UnaryBackward, Affine and Accumulate.
#include <algorithm>
#include <cmath>

#include "lockstep/ops/cpu/channel_add.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/strided.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cpu {
namespace {

// ---- binary -----------------------------------------------------------------------------------------------------

/// One row of a broadcast operation; a_step and b_step are arbitrary strides.
template <class T, class F>
class BinaryRow {
public:
    BinaryRow(std::int64_t a_step, std::int64_t b_step) : a_step_(a_step), b_step_(b_step) {}

    void operator()(const T* a, const T* b, T* y, std::int64_t n) const {
        if constexpr (std::is_floating_point_v<T>) {
            const auto& loop = binary_loops<T, F>();
            if (a_step_ == 1 && b_step_ == 1) return loop[0](a, b, y, n);
            if (a_step_ == 1 && b_step_ == 0) return loop[1](a, b, y, n);
            if (a_step_ == 0 && b_step_ == 1) return loop[2](a, b, y, n);
            for (std::int64_t i = 0; i < n; ++i) loop[0](a + i * a_step_, b + i * b_step_, y + i, 1);
        } else {
            for (std::int64_t i = 0; i < n; ++i) y[i] = F().value(a[i * a_step_], b[i * b_step_]);
        }
    }

private:
    std::int64_t a_step_, b_step_;
};

/// Both operands and the output are dense and have the same arrangement.
template <class T, class F>
std::unique_ptr<Kernel> make_dense_binary(std::int64_t elements, int threads) {
    return make_kernel([row = BinaryRow<T, F>(1, 1), elements, threads](const KernelArgs& call) {
        for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
            row(call.input<T>(0) + begin, call.input<T>(1) + begin, call.output<T>(0) + begin, end - begin);
        });
    });
}

template <class T, class F>
std::unique_ptr<Kernel> make_strided_binary(const KernelRequest& request) {
    const Shape& shape = request.out[0].shape;
    const StridedWalk<3> walk(shape, {broadcast_strides(request.in[0], shape), broadcast_strides(request.in[1], shape),
                                      request.out[0].strides});
    const BinaryRow<T, F> row(walk.steps()[0], walk.steps()[1]);
    return make_kernel([walk, row, threads = request.threads](const KernelArgs& call) {
        const auto *a = call.input<T>(0), *b = call.input<T>(1);
        auto* y = call.output<T>(0);
        if (walk.rows() == 1) {
            for_element_parts(threads, walk.run(), [&](std::int64_t begin, std::int64_t end) {
                row(a + begin * walk.steps()[0], b + begin * walk.steps()[1], y + begin, end - begin);
            });
            return;
        }
        const std::int64_t grain = std::max<std::int64_t>(1, element_grain / walk.run());
        for_parts(worthwhile_threads(threads, walk.rows() * walk.run()), walk.rows(), grain,
                  [&](std::int64_t begin, std::int64_t end) {
                      walk.for_rows(begin, end,
                                    [&](const auto& at) { row(a + at[0], b + at[1], y + at[2], walk.run()); });
                  });
    });
}

bool is_channel_factor(const TensorMeta& factor, const Shape& shape) {
    return shape.dims() == 4 && factor.shape == Shape{shape[0], shape[1], 1, 1};
}

/// y = x * factor with factor (N, C, 1, 1), on blocked x.
template <class T>
std::unique_ptr<Kernel> make_channel_scale(const Planes& planes, int threads) {
    return make_kernel([planes, threads](const KernelArgs& call) {
        const Loops<T>& loop = loops<T>();
        const auto *x = call.input<T>(0), *factor = call.input<T>(1);
        auto* y = call.output<T>(0);
        for_parts(worthwhile_threads(threads, planes.elements()), planes.count(), 1,
                  [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t p = begin; p < end; ++p) {
                          const std::int64_t first = p % planes.blocks * planes.width;
                          T lane[lanes];
                          for (int j = 0; j < lanes; ++j) {
                              const std::int64_t channel = first + j % planes.width;
                              lane[j] = channel < planes.channels
                                            ? factor[p / planes.blocks * planes.channels + channel]
                                            : T(0);
                          }
                          loop.lane_scale(x + p * planes.plane(), lane, y + p * planes.plane(), planes.plane());
                      }
                  });
    });
}

/// The same on channels-last x, where rows of channels are extended so that each call has enough work.
template <class T>
std::unique_ptr<Kernel> make_channels_last_scale(const Shape& shape, int threads) {
    const std::int64_t n = shape[0], channels = shape[1], positions = shape[2] * shape[3];
    return make_kernel([=](const KernelArgs& call) {
        constexpr std::int64_t longest = 256;
        const auto multiply = binary_loops<T, functor::Mul>()[0];
        const std::int64_t repeats = std::max<std::int64_t>(1, longest / channels);
        const int worthwhile = worthwhile_threads(threads, n * channels * positions);
        for_parts(worthwhile, n, 1, [&](std::int64_t begin, std::int64_t end) {
            T row[longest];
            for (std::int64_t i = begin; i < end; ++i) {
                const T* factor = call.input<T>(1) + i * channels;
                if (repeats > 1) {
                    for (std::int64_t r = 0; r < repeats; ++r) std::copy_n(factor, channels, row + r * channels);
                    factor = row;
                }
                const std::int64_t first = i * positions * channels;
                for (std::int64_t p = 0; p < positions; p += repeats) {
                    const std::int64_t at = first + p * channels;
                    multiply(call.input<T>(0) + at, factor, call.output<T>(0) + at,
                             std::min(repeats, positions - p) * channels);
                }
            }
        });
    });
}

template <class F>
std::unique_ptr<Kernel> make_binary(const Binary<F>& operation, KernelRequest& request) {
    constexpr bool divides = std::is_same_v<F, functor::Div>;
    const DType dtype = request.in[0].dtype;
    TensorMeta &a = request.in[0], &b = request.in[1], &y = request.out[0];
    if (b.dtype != dtype || y.dtype != dtype)
        throw InvalidArgument(std::string(operation.name) + " of " + std::string(name_of(dtype)) + " and " +
                              std::string(name_of(b.dtype)) + "; expected one dtype (use .to(dtype))");
    if (divides && !is_floating(dtype)) unsupported_dtype(operation, dtype);
    const bool alike = a.shape == b.shape && a.same_layout(b);
    // 0 / 0 would make the padding of a blocked tensor NaN.
    if (alike && a.opaque != nullptr && is_dense(a, !divides)) {
        set_layout_like(y, a);
        return for_floating(operation, dtype, [&](auto zero) {
            return make_dense_binary<decltype(zero), F>(dense_elements(a), request.threads);
        });
    }
    if (std::is_same_v<F, functor::Mul> && a.opaque != nullptr && is_dense(a) && is_channel_factor(b, a.shape)) {
        request.want_contiguous(1);
        set_layout_like(y, a);
        return for_floating(operation, dtype, [&](auto zero) {
            using T = decltype(zero);
            return is_channels_last(a) ? make_channels_last_scale<T>(a.shape, request.threads)
                                       : make_channel_scale<T>(planes_of(a).value(), request.threads);
        });
    }
    if (adds_to_channels<F>(request)) return make_channel_add(operation, request);
    for (std::size_t i = 0; i < 2; ++i)
        if (request.in[i].opaque != nullptr) request.want_contiguous(i);
    require_contiguous_output(operation, request, 0);
    switch (dtype) {
        case DType::f32: return make_strided_binary<float, F>(request);
        case DType::f64: return make_strided_binary<double, F>(request);
        case DType::i32: return make_strided_binary<std::int32_t, F>(request);
        case DType::i64: return make_strided_binary<std::int64_t, F>(request);
        case DType::u8: return make_strided_binary<std::uint8_t, F>(request);
        default: unsupported_dtype(operation, dtype);
    }
}

std::unique_ptr<Kernel> make_accumulate(const Accumulate& operation, KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    if (!(is_dense(request.in[0]) && request.in[0].same_layout(request.in[1]))) {
        request.want_contiguous(0);
        request.want_contiguous(1);
    }
    set_layout_like(request.out[0], request.in[0]);
    return for_floating(operation, dtype, [&](auto zero) {
        return make_dense_binary<decltype(zero), functor::Add>(dense_elements(request.in[0]), request.threads);
    });
}

// ---- unary ------------------------------------------------------------------------------------------------------

/// Calls apply(x, y, n) over dense x; the output has the same layout.
template <class T, class Apply>
std::unique_ptr<Kernel> make_dense_map(KernelRequest& request, bool zero_stays, Apply apply) {
    if (!is_dense(request.in[0], zero_stays)) request.want_contiguous(0);
    set_layout_like(request.out[0], request.in[0]);
    return make_kernel(
        [elements = dense_elements(request.in[0]), threads = request.threads, apply](const KernelArgs& call) {
            for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                apply(call.input<T>(0) + begin, call.output<T>(0) + begin, end - begin);
            });
        });
}

template <class F>
std::unique_ptr<Kernel> make_unary(const Unary<F>& operation, KernelRequest& request) {
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const F function = operation.function;
        return make_dense_map<T>(request, function.value(T(0)) == T(0),
                                 [function](const T* x, T* y, std::int64_t n) { run_unary(function, x, y, n); });
    });
}

std::unique_ptr<Kernel> make_affine(const Affine& operation, KernelRequest& request) {
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto scale = static_cast<T>(operation.scale), shift = static_cast<T>(operation.shift);
        const bool keeps_zero = shift == T(0) && std::isfinite(scale);
        return make_dense_map<T>(request, keeps_zero, [scale, shift](const T* x, T* y, std::int64_t n) {
            loops<T>().affine(x, y, n, scale, shift);
        });
    });
}

template <class F>
std::unique_ptr<Kernel> make_unary_backward(const UnaryBackward<F>& operation, KernelRequest& request) {
    return for_floating(operation, request.in[0].dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
        using T = decltype(zero);
        const F function = operation.function;
        const bool zero_stays = function.gradient(T(0), T(0)) == T(0);
        if (F::saves == Saves::nothing)
            return make_dense_map<T>(request, zero_stays, [function](const T* dy, T* dx, std::int64_t n) {
                run_unary_backward<F, T>(function, dy, nullptr, dx, n);
            });
        if (!is_dense(request.in[1], zero_stays)) request.want_contiguous(1);
        set_layout_like(request.in[0], request.in[1]);
        set_layout_like(request.out[0], request.in[1]);
        return make_kernel(
            [function, elements = dense_elements(request.in[1]), threads = request.threads](const KernelArgs& call) {
                for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                    run_unary_backward(function, call.input<T>(0) + begin, call.input<T>(1) + begin,
                                       call.output<T>(0) + begin, end - begin);
                });
            });
    });
}

template <class... Functions>
void add_binary_kernels(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add<Binary<Functions>, make_binary<Functions>>(), ...);
}

template <class... Functions>
void add_unary_kernels(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add<Unary<Functions>, make_unary<Functions>>(), ...);
    (table.add<UnaryBackward<Functions>, make_unary_backward<Functions>>(), ...);
}

}  // namespace

void add_elementwise_kernels(KernelTable& table) {
    add_binary_kernels(table, list_of<BinaryFunctions>);
    table.add<Accumulate, make_accumulate>();
    add_unary_kernels(table, list_of<UnaryFunctions>);
    table.add<Affine, make_affine>();
}

}  // namespace lockstep::cpu
