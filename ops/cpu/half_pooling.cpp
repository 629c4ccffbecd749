// Max pooling of 16-bit images with adjacent windows: one band of rows, which makes one row of the result, is widened
// at a time. For windows that overlap or begin in the padding, f32 kernels run between conversions.
#include <algorithm>
#include <vector>

#include "lockstep/ops/cpu/channel_runs.h"
#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

bool in_bands(const PoolGeometry& window) { return window.pad_h == 0 && window.stride_h == window.kernel_h; }

/// Planes of x and y as bands of rows.
struct Bands {
    ChannelRuns runs;
    PoolPlanes band;  ///< one: stride_h rows of x, one of y
    std::int64_t h, out_h;

    Bands(const ChannelRuns& given, const Shape& x, const Shape& y, const PoolGeometry& window)
        : runs(given), band{window.stride_h, x[3], 1, y[3], window, given.pixel}, h(x[2]), out_h(y[2]) {}

    std::int64_t in_row() const { return band.w * band.pixel; }
    std::int64_t out_row() const { return band.out_w * band.pixel; }
    std::int64_t in_band() const { return band.h * in_row(); }

    /// Calls work(first element of the plane in x, first element in y, a buffer for a band and two rows of y) for all
    /// planes, in parallel.
    template <class Work>
    void for_planes(int threads, const Work& work) const {
        const std::int64_t in = h * in_row(), out = out_h * out_row();
        for_parts(worthwhile_threads(threads, runs.planes * in), runs.planes, 1,
                  [&](std::int64_t begin, std::int64_t end) {
                      std::vector<float> buffer(static_cast<std::size_t>(in_band() + 2 * out_row()));
                      for (std::int64_t plane = begin; plane < end; ++plane)
                          work(plane * in, plane * out, buffer.data());
                  });
    }
};

template <class Stored>
std::unique_ptr<Kernel> make_half_forward_of(const Bands& bands, int threads) {
    return make_kernel([bands, threads](const KernelArgs& call) {
        bands.for_planes(threads, [&](std::int64_t in, std::int64_t out, float* buffer) {
            float* const row = buffer + bands.in_band();
            for (std::int64_t i = 0; i < bands.out_h; ++i) {
                float16::upcast(call.input<Stored>(0) + in + i * bands.in_band(), buffer, bands.in_band());
                const std::int64_t to = out + i * bands.out_row();
                for (const ChannelRuns::Run& run : bands.runs.runs)
                    loops<float>().pool[run.width](bands.band, buffer + run.first, row + run.first,
                                                   call.output<std::uint8_t>(1) + to + run.first);
                float16::downcast(row, call.output<Stored>(0) + to, bands.out_row());
            }
        });
    });
}

template <class Stored>
std::unique_ptr<Kernel> make_half_backward_of(const Bands& bands, bool masked, int threads) {
    return make_kernel([bands, masked, threads](const KernelArgs& call) {
        bands.for_planes(threads, [&](std::int64_t in, std::int64_t out, float* buffer) {
            float *const dy = buffer + bands.in_band(), *const y = dy + bands.out_row();
            Stored* const dx = call.output<Stored>(0) + in;
            for (std::int64_t i = 0; i < bands.out_h; ++i) {
                const std::int64_t from = out + i * bands.out_row();
                float16::upcast(call.input<Stored>(0) + from, dy, bands.out_row());
                if (masked) float16::upcast(call.input<Stored>(2) + from, y, bands.out_row());
                for (const ChannelRuns::Run& run : bands.runs.runs)
                    loops<float>().pool_backward[run.width](bands.band, dy + run.first,
                                                            call.input<std::uint8_t>(1) + from + run.first,
                                                            masked ? y + run.first : nullptr, buffer + run.first);
                float16::downcast(buffer, dx + i * bands.in_band(), bands.in_band());
            }
            // Rows outside of all windows.
            std::fill(dx + bands.out_h * bands.in_band(), dx + bands.h * bands.in_row(), Stored(0.0F));
        });
    });
}

std::unique_ptr<Kernel> make_half_forward(const MaxPool2dForward& operation, KernelRequest& request) {
    if (!in_bands(operation.geometry) || request.out[0].dtype != request.in[0].dtype) return nullptr;
    const ChannelRuns runs = want_channel_runs(request, 0);
    set_layout_like(request.out[0], request.in[0]);
    set_layout_like(request.out[1], request.in[0]);
    const Bands bands(runs, request.in[0].shape, request.out[0].shape, operation.geometry);
    return request.in[0].dtype == DType::bf16 ? make_half_forward_of<BFloat16>(bands, request.threads)
                                              : make_half_forward_of<Half>(bands, request.threads);
}

std::unique_ptr<Kernel> make_half_backward(const MaxPool2dBackward& operation, KernelRequest& request) {
    const bool masked = operation.activation == Activation::relu;
    const DType dtype = request.in[0].dtype;
    if (!in_bands(operation.geometry) || request.out[0].dtype != dtype || (masked && request.in[2].dtype != dtype))
        return nullptr;
    const ChannelRuns runs = want_channel_runs(request, 1);
    set_layout_like(request.in[0], request.in[1]);
    if (masked) set_layout_like(request.in[2], request.in[1]);
    set_layout_like(request.out[0], request.in[1]);
    const Bands bands(runs, request.out[0].shape, request.in[1].shape, operation.geometry);
    return dtype == DType::bf16 ? make_half_backward_of<BFloat16>(bands, masked, request.threads)
                                : make_half_backward_of<Half>(bands, masked, request.threads);
}

}  // namespace

void add_half_pooling_kernels(KernelTable& table) {
    table.add_half_types<MaxPool2dForward, make_half_forward>();
    table.add_half_types<MaxPool2dBackward, make_half_backward>();
}

}  // namespace lockstep::cpu
