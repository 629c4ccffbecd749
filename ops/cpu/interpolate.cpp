// Interpolation, on plain, blocked and channels-last images.
#include "lockstep/ops/internal/nn_operations.h"

#include <vector>

#include "lockstep/ops/cpu/channel_runs.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

template <class T>
std::vector<element::Taps<T>> all_taps(const InterpolateGeometry& g, double step, std::int64_t in, std::int64_t out) {
    std::vector<element::Taps<T>> taps;
    for (std::int64_t o = 0; o < out; ++o)
        taps.push_back(element::interpolation_taps<T>(g.nearest, g.align_corners, step, in, o));
    return taps;
}

/// Planes of x and of the result, with the taps of the result's elements.
template <class T>
struct Interpolated {
    Interpolated(const InterpolateGeometry& g, const Shape& x, const Shape& y, ChannelRuns how)
        : runs(std::move(how)),
          rows(all_taps<T>(g, g.step_h, x[2], y[2])),
          columns(all_taps<T>(g, g.step_w, x[3], y[3])),
          h(x[2]),
          w(x[3]),
          nearest(g.nearest) {}

    /// Calls work(planes, first element of x, first element of the result, width) for every run.
    template <class Work>
    void for_all(int threads, const Work& work) const {
        const auto out_h = static_cast<std::int64_t>(rows.size()), out_w = static_cast<std::int64_t>(columns.size());
        const InterpolatePlanes<T> planes{h, w, out_h, out_w, runs.pixel, rows.data(), columns.data(), nearest};
        runs.for_all(threads, out_h * out_w, [&](std::int64_t plane, const ChannelRuns::Run& run) {
            work(planes, plane * h * w * runs.pixel + run.first, plane * out_h * out_w * runs.pixel + run.first,
                 run.width);
        });
    }

    ChannelRuns runs;
    std::vector<element::Taps<T>> rows, columns;
    std::int64_t h, w;
    bool nearest;
};

std::unique_ptr<Kernel> make_interpolate_forward(const InterpolateForward& operation, KernelRequest& request) {
    const ChannelRuns runs = want_channel_runs(request, 0);
    set_layout_like(request.out[0], request.in[0]);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const Interpolated<T> all(operation.geometry, request.in[0].shape, request.out[0].shape, runs);
        return make_kernel([all, threads = request.threads](const KernelArgs& call) {
            all.for_all(threads,
                        [&](const InterpolatePlanes<T>& planes, std::int64_t x, std::int64_t y, std::size_t width) {
                            loops<T>().interpolate[width](planes, call.input<T>(0) + x, call.output<T>(0) + y);
                        });
        });
    });
}

std::unique_ptr<Kernel> make_interpolate_backward(const InterpolateBackward& operation, KernelRequest& request) {
    const ChannelRuns runs = want_channel_runs(request, 0);
    set_layout_like(request.out[0], request.in[0]);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const Interpolated<T> all(operation.geometry, request.out[0].shape, request.in[0].shape, runs);
        return make_kernel([all, threads = request.threads](const KernelArgs& call) {
            all.for_all(
                threads, [&](const InterpolatePlanes<T>& planes, std::int64_t dx, std::int64_t dy, std::size_t width) {
                    loops<T>().interpolate_backward[width](planes, call.input<T>(0) + dy, call.output<T>(0) + dx);
                });
        });
    });
}

}  // namespace

void add_interpolate_kernels(KernelTable& table) {
    table.add<InterpolateForward, make_interpolate_forward>();
    table.add<InterpolateBackward, make_interpolate_backward>();
}

}  // namespace lockstep::cpu
