// Max pooling with recorded positions; backward gathers, so that every gradient is summed in one order.
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/layout.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/pooling_operations.h"
#include "lockstep/ops/internal/unary_functions.h"

namespace lockstep::cuda {

namespace {

template <class T>
struct PoolElement {
    ImageIndex in, out;
    PoolGeometry g;
    const T* x;
    T* y;
    std::uint8_t* where;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = out.position(i);
        const std::int64_t top = at.h * g.stride_h - g.pad_h;
        const std::int64_t left = at.w * g.stride_w - g.pad_w;
        T best = T(0);
        int best_position = -1;
        for (int kh = 0; kh < g.kernel_h; ++kh) {
            const std::int64_t h = top + kh;
            if (h < 0 || h >= in.images.h) continue;
            for (int kw = 0; kw < g.kernel_w; ++kw) {
                const std::int64_t w = left + kw;
                if (w < 0 || w >= in.images.w) continue;
                const T value = x[in.of(at, h, w)];
                if (best_position < 0 || element::pool_takes(value, best)) {
                    best = value;
                    best_position = kh * g.kernel_w + kw;
                }
            }
        }
        y[i] = best;
        where[i] = static_cast<std::uint8_t>(best_position);
    }
};

template <class T>
struct UnpoolElement {
    ImageIndex in, out;
    PoolGeometry g;
    const T* dy;
    const std::uint8_t* where;
    const T* y;  // null without an activation
    T* dx;

    /// First window that reaches a row (or column): ceil((position - kernel + 1) / stride), not below 0.
    static LOCKSTEP_ELEMENT std::int64_t first_window(std::int64_t position, int kernel, int stride) {
        const std::int64_t start = position - kernel + 1;
        return start <= 0 ? 0 : (start + stride - 1) / stride;
    }
    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const auto at = in.position(i);
        const std::int64_t row = at.h + g.pad_h;
        const std::int64_t column = at.w + g.pad_w;
        T sum = T(0);
        for (std::int64_t oh = first_window(row, g.kernel_h, g.stride_h); oh < out.images.h && oh * g.stride_h <= row;
             ++oh)
            for (std::int64_t ow = first_window(column, g.kernel_w, g.stride_w);
                 ow < out.images.w && ow * g.stride_w <= column; ++ow) {
                const std::int64_t o = out.of(at, oh, ow);
                const std::int64_t position = (row - oh * g.stride_h) * g.kernel_w + column - ow * g.stride_w;
                if (where[o] == position) sum += y != nullptr ? functor::Relu().gradient(dy[o], y[o]) : dy[o];
            }
        dx[i] = sum;
    }
};

KernelPtr make_max_pool2d_forward(const MaxPool2dForward& op, KernelRequest& request) {
    const Images x = want_images(request, 0);
    for (TensorMeta& out : request.out) {
        if (x.channels_last)
            lay_out_channels_last(out);
        else
            out.strides = out.shape.contiguous_strides();
    }
    Images y = images_of(request.out[0]);
    y.channels_last = x.channels_last;
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [x, y, g = op.geometry](const Queue& queue, const KernelArgs& v) {
            launch(queue, "max_pool2d_forward", y.n * y.c * y.h * y.w,
                   PoolElement<T>{{x}, {y}, g, v.input<T>(0), v.output<T>(0), v.output<std::uint8_t>(1)});
        });
    });
}

KernelPtr make_max_pool2d_backward(const MaxPool2dBackward& op, KernelRequest& request) {
    const Images where = want_images(request, 1);
    want_like(request, 0, request.in[1]);
    const bool masked = op.activation == Activation::relu;
    if (masked) want_like(request, 2, request.in[1]);
    if (where.channels_last)
        lay_out_channels_last(request.out[0]);
    else
        request.out[0].strides = request.out[0].shape.contiguous_strides();
    Images dx = images_of(request.out[0]);
    dx.channels_last = where.channels_last;
    return visit_float(operation_name(op), request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [dx, where, masked, g = op.geometry](const Queue& queue, const KernelArgs& v) {
            launch(queue, "max_pool2d_backward", dx.n * dx.c * dx.h * dx.w,
                   UnpoolElement<T>{{dx},
                                    {where},
                                    g,
                                    v.input<T>(0),
                                    v.input<std::uint8_t>(1),
                                    masked ? v.input<T>(2) : nullptr,
                                    v.output<T>(0)});
        });
    });
}

}  // namespace

void add_pooling_kernels(KernelTable& table) {
    table.add<MaxPool2dForward, make_max_pool2d_forward>();
    table.add<MaxPool2dBackward, make_max_pool2d_backward>();
}

}  // namespace lockstep::cuda
