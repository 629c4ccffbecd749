// Max pooling, on plain, blocked and channels-last activations.
#include "lockstep/ops/cpu/channel_runs.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

PoolPlanes pool_planes(const Shape& x, const Shape& y, const PoolGeometry& window, const ChannelRuns& runs) {
    return {x[2], x[3], y[2], y[3], window, runs.pixel};
}

std::unique_ptr<Kernel> make_max_pool_forward(const MaxPool2dForward& operation, KernelRequest& request) {
    const ChannelRuns runs = want_channel_runs(request, 0);
    set_layout_like(request.out[0], request.in[0]);
    set_layout_like(request.out[1], request.in[0]);
    const PoolPlanes geometry = pool_planes(request.in[0].shape, request.out[0].shape, operation.geometry, runs);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([runs, geometry, threads = request.threads](const KernelArgs& call) {
            const std::int64_t in = geometry.h * geometry.w, out = geometry.out_h * geometry.out_w;
            runs.for_all(threads, in, [&](std::int64_t plane, const ChannelRuns::Run& run) {
                const std::int64_t to = plane * out * runs.pixel + run.first;
                loops<T>().pool[run.width](geometry, call.input<T>(0) + plane * in * runs.pixel + run.first,
                                           call.output<T>(0) + to, call.output<std::uint8_t>(1) + to);
            });
        });
    });
}

std::unique_ptr<Kernel> make_max_pool_backward(const MaxPool2dBackward& operation, KernelRequest& request) {
    const bool masked = operation.activation == Activation::relu;
    const ChannelRuns runs = want_channel_runs(request, 1);
    set_layout_like(request.in[0], request.in[1]);
    if (masked) set_layout_like(request.in[2], request.in[1]);
    set_layout_like(request.out[0], request.in[1]);
    const PoolPlanes geometry = pool_planes(request.out[0].shape, request.in[1].shape, operation.geometry, runs);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([runs, geometry, masked, threads = request.threads](const KernelArgs& call) {
            const std::int64_t in = geometry.h * geometry.w, out = geometry.out_h * geometry.out_w;
            const T* const y = masked ? call.input<T>(2) : nullptr;
            runs.for_all(threads, in, [&](std::int64_t plane, const ChannelRuns::Run& run) {
                const std::int64_t from = plane * out * runs.pixel + run.first;
                loops<T>().pool_backward[run.width](geometry, call.input<T>(0) + from,
                                                    call.input<std::uint8_t>(1) + from, masked ? y + from : nullptr,
                                                    call.output<T>(0) + plane * in * runs.pixel + run.first);
            });
        });
    });
}

}  // namespace

void add_pooling_kernels(KernelTable& table) {
    table.add<MaxPool2dForward, make_max_pool_forward>();
    table.add<MaxPool2dBackward, make_max_pool_backward>();
}

}  // namespace lockstep::cpu
