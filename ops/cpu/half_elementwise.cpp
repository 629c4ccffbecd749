// Elementwise operations on dense tensors of 16-bit floats: those that U-Net and similar models apply to activations
// between layers. Other arrangements, and functions with broadcast operands, use the f32 kernels between conversions.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lockstep/ops/cpu/channel_add.h"
#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep::cpu {
namespace {

/// Calls make(BFloat16{}) or make(Half{}).
template <class Make>
std::unique_ptr<Kernel> for_half(DType dtype, const Make& make) {
    return dtype == DType::bf16 ? make(BFloat16{}) : make(Half{});
}

bool all_half_alike(const KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    for (const TensorMeta& meta : request.in)
        if (meta.dtype != dtype) return false;
    return is_half_type(dtype) && request.out[0].dtype == dtype;
}

/// Calls apply(a, y, n), or apply(a, b, y, n) for two inputs, in f32, with y in place of a. Inputs are dense and have
/// the same arrangement.
template <int inputs, class Apply>
std::unique_ptr<Kernel> make_half_map(KernelRequest& request, const Apply& apply) {
    set_layout_like(request.out[0], request.in[0]);
    return for_half(request.in[0].dtype, [&](auto stored) {
        using Stored = decltype(stored);
        return make_kernel(
            [elements = dense_elements(request.in[0]), threads = request.threads, apply](const KernelArgs& call) {
                for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                    for_runs(end - begin, [&](std::ptrdiff_t first, std::ptrdiff_t count) {
                        float rooms[inputs][run_elements];
                        for (int i = 0; i < inputs; ++i)
                            float16::upcast(call.input<Stored>(i) + begin + first, rooms[i], count);
                        if constexpr (inputs == 1)
                            apply(rooms[0], rooms[0], count);
                        else
                            apply(rooms[0], rooms[1], rooms[0], count);
                        float16::downcast(rooms[0], call.output<Stored>(0) + begin + first, count);
                    });
                });
            });
    });
}

template <class F>
std::unique_ptr<Kernel> make_half_unary(const Unary<F>& operation, KernelRequest& request) {
    const F function = operation.function;
    if (!all_half_alike(request) || !is_dense(request.in[0], function.value(0.0F) == 0.0F)) return nullptr;
    return make_half_map<1>(request,
                            [function](const float* x, float* y, std::int64_t n) { run_unary(function, x, y, n); });
}

template <class F>
std::unique_ptr<Kernel> make_half_unary_backward(const UnaryBackward<F>& operation, KernelRequest& request) {
    const F function = operation.function;
    const bool zero_stays = function.gradient(0.0F, 0.0F) == 0.0F;
    if (!all_half_alike(request)) return nullptr;
    if constexpr (F::saves == Saves::nothing) {
        if (!is_dense(request.in[0], zero_stays)) return nullptr;
        return make_half_map<1>(request, [function](const float* dy, float* dx, std::int64_t n) {
            run_unary_backward<F, float>(function, dy, nullptr, dx, n);
        });
    } else {
        if (!is_dense(request.in[1], zero_stays)) return nullptr;
        set_layout_like(request.in[0], request.in[1]);
        return make_half_map<2>(request, [function](const float* dy, const float* saved, float* dx, std::int64_t n) {
            run_unary_backward(function, dy, saved, dx, n);
        });
    }
}

std::unique_ptr<Kernel> make_half_affine(const Affine& operation, KernelRequest& request) {
    const auto scale = static_cast<float>(operation.scale), shift = static_cast<float>(operation.shift);
    if (!all_half_alike(request) || !is_dense(request.in[0], shift == 0.0F && std::isfinite(scale))) return nullptr;
    return make_half_map<1>(request, [scale, shift](const float* x, float* y, std::int64_t n) {
        loops<float>().affine(x, y, n, scale, shift);
    });
}

template <class F>
std::unique_ptr<Kernel> make_half_binary(const Binary<F>& operation, KernelRequest& request) {
    const TensorMeta &a = request.in[0], &b = request.in[1];
    if (all_half_alike(request) && adds_to_channels<F>(request)) return make_channel_add(operation, request);
    // 0 / 0 would make the padding of a blocked tensor NaN.
    const bool dense = is_dense(a, !std::is_same_v<F, functor::Div>);
    const bool fresh = request.out[0].opaque != nullptr || request.out[0].is_contiguous();
    if (!all_half_alike(request) || !(a.shape == b.shape && a.same_layout(b)) || !dense || !fresh) return nullptr;
    return make_half_map<2>(request, [](const float* x, const float* y, float* z, std::int64_t n) {
        binary_loops<float, F>()[0](x, y, z, n);
    });
}

std::unique_ptr<Kernel> make_half_accumulate(const Accumulate&, KernelRequest& request) {
    const TensorMeta &a = request.in[0], &b = request.in[1];
    if (!all_half_alike(request) || !is_dense(a) || !a.same_layout(b)) return nullptr;
    return make_half_map<2>(request, [](const float* x, const float* y, float* z, std::int64_t n) {
        binary_loops<float, functor::Add>()[0](x, y, z, n);
    });
}

template <class... Functions>
void add_half_binary_kernels(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add_half_types<Binary<Functions>, make_half_binary<Functions>>(), ...);
}

template <class... Functions>
void add_half_unary_kernels(KernelTable& table, const std::tuple<Functions...>*) {
    (table.add_half_types<Unary<Functions>, make_half_unary<Functions>>(), ...);
    (table.add_half_types<UnaryBackward<Functions>, make_half_unary_backward<Functions>>(), ...);
}

}  // namespace

void add_half_elementwise_kernels(KernelTable& table) {
    add_half_binary_kernels(table, list_of<BinaryFunctions>);
    table.add_half_types<Accumulate, make_half_accumulate>();
    add_half_unary_kernels(table, list_of<UnaryFunctions>);
    table.add_half_types<Affine, make_half_affine>();
}

}  // namespace lockstep::cpu
