// The shape of a two-dimensional convolution, as PyTorch's conv2d counts it.
#pragma once

#include <cstdint>

namespace lockstep {

/// x (n, c, h, w), weights (k, c, kh, kw), y (n, k, out_h(), out_w()); float32, no groups, no dilation.
struct ConvShape {
    std::int64_t n, c, h, w, k, kh, kw;
    std::int64_t stride = 1, pad = 0;  // the same in both directions
    bool bias = true;

    std::int64_t out_h() const { return (h + 2 * pad - kh) / stride + 1; }
    std::int64_t out_w() const { return (w + 2 * pad - kw) / stride + 1; }
};

}  // namespace lockstep
