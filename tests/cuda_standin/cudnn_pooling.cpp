// cuDNN: pooling in two spatial dimensions.
#include <algorithm>
#include <cmath>

#include "lockstep/tests/cuda_standin/cudnn_state.h"

namespace standin {
namespace {

using Values = std::vector<double>;

// Windows over planes of (N, C, H, W), dense in that order.
struct Windows {
    PoolingDesc how;
    std::int64_t planes, h, w, p, q;

    struct Window {
        std::int64_t top, bottom, left, right;  // clipped to the plane
        double divisor;
        std::size_t out;
        std::size_t plane;  // index of its first element
    };

    template <class Visit>
    void for_each(Visit&& visit) const {
        const bool padded = how.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
        std::size_t out = 0;
        for (std::int64_t plane = 0; plane < planes; ++plane)
            for (std::int64_t y = 0; y < p; ++y)
                for (std::int64_t x = 0; x < q; ++x, ++out) {
                    const std::int64_t top = y * how.strides[0] - how.pads[0], left = x * how.strides[1] - how.pads[1];
                    Window at{std::max<std::int64_t>(top, 0),
                              std::min(top + how.windows[0], h),
                              std::max<std::int64_t>(left, 0),
                              std::min(left + how.windows[1], w),
                              0,
                              out,
                              static_cast<std::size_t>(plane * h * w)};
                    at.divisor = static_cast<double>(padded ? how.windows[0] * how.windows[1]
                                                            : (at.bottom - at.top) * (at.right - at.left));
                    visit(at);
                }
    }

    template <class Visit>
    void for_each_element(const Window& at, Visit&& visit) const {
        for (std::int64_t y = at.top; y < at.bottom; ++y)
            for (std::int64_t x = at.left; x < at.right; ++x) visit(at.plane + static_cast<std::size_t>(y * w + x));
    }

    bool is_max() const { return how.mode == CUDNN_POOLING_MAX || how.mode == CUDNN_POOLING_MAX_DETERMINISTIC; }

    // The first of the largest elements; NaN is the largest if it is propagated.
    std::size_t largest(const Window& at, const Values& x) const {
        std::size_t best = at.plane + static_cast<std::size_t>(at.top * w + at.left);
        for_each_element(at, [&](std::size_t i) {
            const bool nan_wins =
                how.propagate_nan ? std::isnan(x[i]) && !std::isnan(x[best]) : std::isnan(x[best]) && !std::isnan(x[i]);
            if (x[i] > x[best] || nan_wins) best = i;
        });
        return best;
    }
};

Windows windows_of(Call& call, cudnnPoolingDescriptor_t pooling, const Strided& x) {
    const auto& how = call.object<PoolingDesc>(pooling);
    if (how.windows.size() != 2 || x.dims.size() != 4)
        refuse(cudaErrorNotSupported, Kind::unsupported, "pooling of other than two spatial dimensions");
    Windows all{how, x.dims[0] * x.dims[1], x.dims[2], x.dims[3], 0, 0};
    all.p = (all.h + 2 * how.pads[0] - how.windows[0]) / how.strides[0] + 1;
    all.q = (all.w + 2 * how.pads[1] - how.windows[1]) / how.strides[1] + 1;
    if (all.h + 2 * how.pads[0] < how.windows[0] || all.w + 2 * how.pads[1] < how.windows[1])
        refuse_shapes("the window is larger than the padded input");
    if (how.pads[0] >= how.windows[0] || how.pads[1] >= how.windows[1])
        refuse_shapes("a window could be entirely in the padding");
    return all;
}

Windows windows_of(Call& call, cudnnPoolingDescriptor_t pooling, const Strided& x, const Strided& y) {
    const Windows all = windows_of(call, pooling, x);
    if (y.dims != std::vector<std::int64_t>{x.dims[0], x.dims[1], all.p, all.q})
        refuse_shapes("the output should be (.., .., " + std::to_string(all.p) + ", " + std::to_string(all.q) + ")");
    return all;
}

Values pool(const Windows& all, const Values& x) {
    Values y(static_cast<std::size_t>(all.planes * all.p * all.q));
    all.for_each([&](const Windows::Window& at) {
        if (all.is_max()) {
            y[at.out] = x[all.largest(at, x)];
        } else {
            all.for_each_element(at, [&](std::size_t i) { y[at.out] += x[i] / at.divisor; });
        }
    });
    return y;
}

Values pool_backward(const Windows& all, const Values& x, const Values& dy) {
    Values dx(static_cast<std::size_t>(all.planes * all.h * all.w));
    all.for_each([&](const Windows::Window& at) {
        if (all.is_max()) {
            dx[all.largest(at, x)] += dy[at.out];
        } else {
            all.for_each_element(at, [&](std::size_t i) { dx[i] += dy[at.out] / at.divisor; });
        }
    });
    return dx;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cudnnStatus_t cudnnGetPooling2dForwardOutputDim(const cudnnPoolingDescriptor_t pooling, const cudnnTensorDescriptor_t x,
                                                int* n, int* c, int* h, int* w) {
    return cudnn_call("cudnnGetPooling2dForwardOutputDim", [&](Call& call) {
        const Strided& xs = view_of(call, x);
        const Windows all = windows_of(call, pooling, xs);
        *n = static_cast<int>(xs.dims[0]);
        *c = static_cast<int>(xs.dims[1]);
        *h = static_cast<int>(all.p);
        *w = static_cast<int>(all.q);
    });
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha,
                                  const cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                  const cudnnTensorDescriptor_t y_desc, void* y) {
    return cudnn_call("cudnnPoolingForward", [&](Call& call) {
        const Strided xs = view_of(call, x_desc), ys = view_of(call, y_desc);
        const Windows all = windows_of(call, pooling, xs, ys);
        const double a = scaling(alpha, ys), b = scaling(beta, ys);
        enqueue(call, handle, [=] { store(ys, y, pool(all, load(xs, x)), a, b); }, {reads(x, xs), writes(y, ys)});
    });
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling, const void* alpha,
                                   const cudnnTensorDescriptor_t y_desc, const void* y,
                                   const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                   const cudnnTensorDescriptor_t x_desc, const void* x, const void* beta,
                                   const cudnnTensorDescriptor_t dx_desc, void* dx) {
    return cudnn_call("cudnnPoolingBackward", [&](Call& call) {
        const Strided ys = view_of(call, y_desc), dys = view_of(call, dy_desc);
        const Strided xs = view_of(call, x_desc), dxs = view_of(call, dx_desc);
        const Windows all = windows_of(call, pooling, xs, ys);
        check_same_dims(ys, dys, "y and dy");
        check_same_dims(xs, dxs, "x and dx");
        const double a = scaling(alpha, dxs), b = scaling(beta, dxs);
        const bool unsteady = all.how.mode == CUDNN_POOLING_MAX;  // adds in any order if windows overlap
        enqueue(call, handle, [=] { store(dxs, dx, pool_backward(all, load(xs, x), load(dys, dy)), a, b, unsteady); },
                {reads(y, ys), reads(dy, dys), reads(x, xs), writes(dx, dxs)});
    });
}

}  // extern "C"
