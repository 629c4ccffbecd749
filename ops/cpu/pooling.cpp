// Max pooling, on plain and on blocked activations.
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/operations.h"

namespace lockstep {
namespace {

PoolPlanes pool_planes(const Shape& x, const Shape& y, const PoolGeometry& window) {
    return {x[2], x[3], y[2], y[3], window};
}

std::unique_ptr<Kernel> make_max_pool_forward(const MaxPool2dForward& operation, KernelRequest& request) {
    const Planes x = want_planes(request, 0);
    arrange_like(request.out[0], request.in[0]);
    arrange_like(request.out[1], request.in[0]);
    const PoolPlanes geometry = pool_planes(request.in[0].shape, request.out[0].shape, operation.geometry);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([x, geometry, threads = request.threads](const Invocation& call) {
            const auto pool = loops<T>().pool[x.width_index()];
            const std::int64_t out = geometry.out_h * geometry.out_w * x.width;
            for_parts(threads, x.count(), 1, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t p = begin; p < end; ++p)
                    pool(geometry, call.input<T>(0) + p * x.plane(), call.output<T>(0) + p * out,
                         call.output<std::uint8_t>(1) + p * out);
            });
        });
    });
}

/// Of max_pool2d_backward and max_pool2d_relu_backward.
template <class Backward>
std::unique_ptr<Kernel> make_max_pool_backward(const Backward& operation, KernelRequest& request) {
    constexpr bool masked = std::is_same_v<Backward, MaxPool2dReluBackward>;
    const Planes where = want_planes(request, 1);
    arrange_like(request.in[0], request.in[1]);
    if constexpr (masked) arrange_like(request.in[2], request.in[1]);
    arrange_like(request.out[0], request.in[1]);
    const PoolPlanes geometry = pool_planes(request.out[0].shape, request.in[1].shape, operation.geometry);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([where, geometry, threads = request.threads](const Invocation& call) {
            const auto backward = loops<T>().pool_backward[where.width_index()];
            const std::int64_t in = geometry.h * geometry.w * where.width;
            const T* const y = masked ? call.input<T>(2) : nullptr;
            for_parts(threads, where.count(), 1, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t p = begin; p < end; ++p)
                    backward(geometry, call.input<T>(0) + p * where.plane(),
                             call.input<std::uint8_t>(1) + p * where.plane(), masked ? y + p * where.plane() : nullptr,
                             call.output<T>(0) + p * in);
            });
        });
    });
}

}  // namespace

void add_pooling_kernels(KernelTable& table) {
    table.add<MaxPool2dForward, make_max_pool_forward>();
    table.add<MaxPool2dBackward, make_max_pool_backward<MaxPool2dBackward>>();
    table.add<MaxPool2dReluBackward, make_max_pool_backward<MaxPool2dReluBackward>>();
}

}  // namespace lockstep
