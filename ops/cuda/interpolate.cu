// Interpolation; backward gathers, so that every gradient is summed in one order.
#include "lockstep/ops/internal/interpolate_operations.h"

#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"

namespace lockstep::cuda {

namespace {

template <class T>
struct InterpolateElement {
    ImageIndex in, out;
    InterpolateGeometry g;
    const T* x;
    T* y;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = out.position(i);
        const auto rows = element::interpolation_taps<T>(g.nearest, g.align_corners, g.step_h, in.images.h, at.h);
        const auto columns = element::interpolation_taps<T>(g.nearest, g.align_corners, g.step_w, in.images.w, at.w);
        if (g.nearest) {
            y[i] = x[in.of(at, rows.first, columns.first)];
            return;
        }
        const T right = columns.share, left = T(1) - right;
        y[i] = (T(1) - rows.share) *
                   (left * x[in.of(at, rows.first, columns.first)] + right * x[in.of(at, rows.first, columns.second)]) +
               rows.share * (left * x[in.of(at, rows.second, columns.first)] +
                             right * x[in.of(at, rows.second, columns.second)]);
    }
};

template <class T>
struct InterpolateBackwardElement {
    ImageIndex in, out;
    InterpolateGeometry g;
    const T* dy;
    T* dx;

    /// How much of element `i` there is in what `taps` make.
    static LOCKSTEP_ELEMENT T share_of(const element::Taps<T>& taps, std::int64_t i) {
        return (taps.first == i ? T(1) - taps.share : T(0)) + (taps.second == i ? taps.share : T(0));
    }
    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = in.position(i);
        const std::int64_t out_h = out.images.h, out_w = out.images.w;
        const auto rows =
            element::interpolation_readers(g.nearest, g.align_corners, g.step_h, in.images.h, out_h, at.h);
        const auto columns =
            element::interpolation_readers(g.nearest, g.align_corners, g.step_w, in.images.w, out_w, at.w);
        T sum = T(0);
        for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
            const auto vertical = element::interpolation_taps<T>(g.nearest, g.align_corners, g.step_h, in.images.h, oh);
            if (vertical.first != at.h && vertical.second != at.h) continue;
            const T down = g.nearest ? T(1) : share_of(vertical, at.h);
            for (std::int64_t ow = columns.begin; ow < columns.end; ++ow) {
                const auto horizontal =
                    element::interpolation_taps<T>(g.nearest, g.align_corners, g.step_w, in.images.w, ow);
                if (horizontal.first != at.w && horizontal.second != at.w) continue;
                const T across = g.nearest ? T(1) : share_of(horizontal, at.w);
                sum += down * across * dy[out.of(at, oh, ow)];
            }
        }
        dx[i] = sum;
    }
};

/// Lays the only output out as the only input, whose layout it is.
Images lay_out_as_input(KernelRequest& request) {
    const Images from = want_images(request, 0);
    if (from.channels_last)
        lay_out_channels_last(request.out[0]);
    else
        request.out[0].strides = request.out[0].shape.contiguous_strides();
    return from;
}

Images like_input(const TensorMeta& meta, const Images& input) {
    Images images = images_of(meta);
    images.channels_last = input.channels_last;
    return images;
}

KernelPtr make_interpolate_forward(const InterpolateForward& op, KernelRequest& request) {
    const Images x = lay_out_as_input(request);
    const Images y = like_input(request.out[0], x);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [x, y, g = op.geometry](const Queue& queue, const KernelArgs& v) {
            launch(queue, "interpolate_forward", y.n * y.c * y.h * y.w,
                   InterpolateElement<T>{{x}, {y}, g, v.input<T>(0), v.output<T>(0)});
        });
    });
}

KernelPtr make_interpolate_backward(const InterpolateBackward& op, KernelRequest& request) {
    const Images dy = lay_out_as_input(request);
    const Images dx = like_input(request.out[0], dy);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [dx, dy, g = op.geometry](const Queue& queue, const KernelArgs& v) {
            launch(queue, "interpolate_backward", dx.n * dx.c * dx.h * dx.w,
                   InterpolateBackwardElement<T>{{dx}, {dy}, g, v.input<T>(0), v.output<T>(0)});
        });
    });
}

}  // namespace

void add_interpolate_kernels(KernelTable& table) {
    table.add<InterpolateForward, make_interpolate_forward>();
    table.add<InterpolateBackward, make_interpolate_backward>();
}

}  // namespace lockstep::cuda
