// The shape of a two-dimensional convolution, with the conventions of PyTorch's conv2d.
#pragma once

#include <cstdint>

namespace lockstep::cpu {

/// A number for each direction; a single number is used for both.
struct PerDirection {
    std::int64_t h, w;
    PerDirection(std::int64_t both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
    PerDirection(std::int64_t of_h, std::int64_t of_w) : h(of_h), w(of_w) {}
    bool same() const { return h == w; }
};

/// x (n, c, h, w), weights (k, c, kh, kw), y (n, k, out_h(), out_w()); float32, no groups, no dilation.
struct ConvShape {
    std::int64_t n, c, h, w, k, kh, kw;
    PerDirection stride = 1, pad = 0;
    bool bias = true;

    std::int64_t out_h() const { return (h + 2 * pad.h - kh) / stride.h + 1; }
    std::int64_t out_w() const { return (w + 2 * pad.w - kw) / stride.w + 1; }
};

}  // namespace lockstep::cpu
