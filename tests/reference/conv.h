// Two-dimensional convolution as plain loops in double, for any stride, zero padding, dilation and groups: what kernels
// are compared with.
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

/// x (n, c, h, w), weights (k, c / groups, kh, kw), y (n, k, out_h(), out_w()); all plain and row-major.
struct ConvShape {
    std::ptrdiff_t n, c, h, w, k, kh, kw;
    PerDirection stride, pad;
    PerDirection dilation = 1;
    std::ptrdiff_t groups = 1;
    std::ptrdiff_t out_h() const { return (h + 2 * pad.h - dilation.h * (kh - 1) - 1) / stride.h + 1; }
    std::ptrdiff_t out_w() const { return (w + 2 * pad.w - dilation.w * (kw - 1) - 1) / stride.w + 1; }
    std::ptrdiff_t x_size() const { return n * c * h * w; }
    std::ptrdiff_t y_size() const { return n * k * out_h() * out_w(); }
    std::ptrdiff_t w_size() const { return k * group_c() * kh * kw; }
    std::ptrdiff_t group_c() const { return c / groups; }
    std::ptrdiff_t group_k() const { return k / groups; }
};

/// Calls f(x index, weight index, y index) for every product of the convolution.
template <class F>
void for_each_product(const ConvShape& s, F f) {
    const std::ptrdiff_t oh = s.out_h(), ow = s.out_w();
    for (std::ptrdiff_t n = 0; n < s.n; ++n)
        for (std::ptrdiff_t k = 0; k < s.k; ++k)
            for (std::ptrdiff_t c = 0; c < s.group_c(); ++c)
                for (std::ptrdiff_t i = 0; i < s.kh; ++i)
                    for (std::ptrdiff_t j = 0; j < s.kw; ++j)
                        for (std::ptrdiff_t y = 0; y < oh; ++y) {
                            const std::ptrdiff_t row = y * s.stride.h + i * s.dilation.h - s.pad.h;
                            if (row < 0 || row >= s.h) continue;
                            for (std::ptrdiff_t x = 0; x < ow; ++x) {
                                const std::ptrdiff_t column = x * s.stride.w + j * s.dilation.w - s.pad.w;
                                if (column < 0 || column >= s.w) continue;
                                const std::ptrdiff_t channel = n * s.c + k / s.group_k() * s.group_c() + c;
                                f((channel * s.h + row) * s.w + column, ((k * s.group_c() + c) * s.kh + i) * s.kw + j,
                                  ((n * s.k + k) * oh + y) * ow + x);
                            }
                        }
}

/// y = x * weights + bias (empty: none).
std::vector<double> conv_forward(const ConvShape& s, const std::vector<float>& x, const std::vector<float>& w,
                                 const std::vector<float>& bias);

/// Gradient of x.
std::vector<double> conv_backward_data(const ConvShape& s, const std::vector<float>& dy, const std::vector<float>& w);

/// Gradient of the weights.
std::vector<double> conv_backward_weights(const ConvShape& s, const std::vector<float>& x,
                                          const std::vector<float>& dy);

/// Gradient of the bias: dy (n, k, ...) summed over all but k.
std::vector<double> conv_backward_bias(const ConvShape& s, const std::vector<float>& dy);

}  // namespace lockstep::reference
