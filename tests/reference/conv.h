// Two-dimensional convolution as plain loops in double, for any stride and zero padding: what kernels are compared
// with.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::reference {

/// A number for each direction; one number is meant for both.
struct PerDirection {
    std::ptrdiff_t h, w;
    PerDirection(std::ptrdiff_t both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
    PerDirection(std::ptrdiff_t of_h, std::ptrdiff_t of_w) : h(of_h), w(of_w) {}
};

/// x (n, c, h, w), weights (k, c, kh, kw), y (n, k, out_h(), out_w()); all plain and row-major.
struct ConvShape {
    std::ptrdiff_t n, c, h, w, k, kh, kw;
    PerDirection stride, pad;
    std::ptrdiff_t out_h() const { return (h + 2 * pad.h - kh) / stride.h + 1; }
    std::ptrdiff_t out_w() const { return (w + 2 * pad.w - kw) / stride.w + 1; }
    std::ptrdiff_t x_size() const { return n * c * h * w; }
    std::ptrdiff_t y_size() const { return n * k * out_h() * out_w(); }
    std::ptrdiff_t w_size() const { return k * c * kh * kw; }
};

/// Calls f(x index, weight index, y index) for every product of the convolution.
template <class F>
void for_each_product(const ConvShape& s, F f) {
    const std::ptrdiff_t oh = s.out_h(), ow = s.out_w();
    for (std::ptrdiff_t n = 0; n < s.n; ++n)
        for (std::ptrdiff_t k = 0; k < s.k; ++k)
            for (std::ptrdiff_t c = 0; c < s.c; ++c)
                for (std::ptrdiff_t i = 0; i < s.kh; ++i)
                    for (std::ptrdiff_t j = 0; j < s.kw; ++j)
                        for (std::ptrdiff_t y = 0; y < oh; ++y) {
                            const std::ptrdiff_t row = y * s.stride.h + i - s.pad.h;
                            if (row < 0 || row >= s.h) continue;
                            for (std::ptrdiff_t x = 0; x < ow; ++x) {
                                const std::ptrdiff_t column = x * s.stride.w + j - s.pad.w;
                                if (column < 0 || column >= s.w) continue;
                                f(((n * s.c + c) * s.h + row) * s.w + column, ((k * s.c + c) * s.kh + i) * s.kw + j,
                                  ((n * s.k + k) * oh + y) * ow + x);
                            }
                        }
}

/// y = x * weights + bias (empty: none).
inline std::vector<double> conv_forward(const ConvShape& s, const std::vector<float>& x, const std::vector<float>& w,
                                        const std::vector<float>& bias) {
    std::vector<double> y(static_cast<std::size_t>(s.y_size()));
    const std::size_t plane = static_cast<std::size_t>(s.out_h() * s.out_w());
    if (!bias.empty())
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<double>(bias[i / plane % bias.size()]);
    for_each_product(s, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
        y[static_cast<std::size_t>(iy)] +=
            static_cast<double>(x[static_cast<std::size_t>(ix)]) * static_cast<double>(w[static_cast<std::size_t>(iw)]);
    });
    return y;
}

/// Gradient of x.
inline std::vector<double> conv_backward_data(const ConvShape& s, const std::vector<float>& dy,
                                              const std::vector<float>& w) {
    std::vector<double> dx(static_cast<std::size_t>(s.x_size()));
    for_each_product(s, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
        dx[static_cast<std::size_t>(ix)] += static_cast<double>(dy[static_cast<std::size_t>(iy)]) *
                                            static_cast<double>(w[static_cast<std::size_t>(iw)]);
    });
    return dx;
}

/// Gradient of the weights.
inline std::vector<double> conv_backward_weights(const ConvShape& s, const std::vector<float>& x,
                                                 const std::vector<float>& dy) {
    std::vector<double> dw(static_cast<std::size_t>(s.w_size()));
    for_each_product(s, [&](std::ptrdiff_t ix, std::ptrdiff_t iw, std::ptrdiff_t iy) {
        dw[static_cast<std::size_t>(iw)] += static_cast<double>(x[static_cast<std::size_t>(ix)]) *
                                            static_cast<double>(dy[static_cast<std::size_t>(iy)]);
    });
    return dw;
}

/// Gradient of the bias: dy (n, k, ...) summed over all but k.
inline std::vector<double> conv_backward_bias(const ConvShape& s, const std::vector<float>& dy) {
    std::vector<double> db(static_cast<std::size_t>(s.k));
    const std::size_t plane = static_cast<std::size_t>(s.out_h() * s.out_w());
    for (std::size_t i = 0; i < dy.size(); ++i) db[i / plane % db.size()] += static_cast<double>(dy[i]);
    return db;
}

}  // namespace lockstep::reference
