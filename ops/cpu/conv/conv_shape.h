// The shape of a two-dimensional convolution, with the conventions of PyTorch's conv2d.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace lockstep::cpu {

/// A number for each direction; a single number is used for both.
struct PerDirection {
    std::int64_t h, w;
    PerDirection(std::int64_t both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
    PerDirection(std::int64_t of_h, std::int64_t of_w) : h(of_h), w(of_w) {}
    bool same() const { return h == w; }
};

/// x (n, c, h, w), weights (k, c / groups, kh, kw), y (n, k, out_h(), out_w()); float32.
struct ConvShape {
    std::int64_t n, c, h, w, k, kh, kw;
    PerDirection stride = 1, pad = 0;
    bool bias = true;
    PerDirection dilation = 1;
    std::int64_t groups = 1;

    /// Elements of x from the first to the last that a window reads.
    std::int64_t window_h() const { return dilation.h * (kh - 1) + 1; }
    std::int64_t window_w() const { return dilation.w * (kw - 1) + 1; }
    std::int64_t out_h() const { return (h + 2 * pad.h - window_h()) / stride.h + 1; }
    std::int64_t out_w() const { return (w + 2 * pad.w - window_w()) / stride.w + 1; }
    std::int64_t weights() const { return k * (c / groups) * kh * kw; }
    /// Every window reads adjacent elements of all channels.
    bool is_dense() const { return dilation.h == 1 && dilation.w == 1 && groups == 1; }
    bool is_depthwise() const { return groups > 1 && c == groups && k == groups; }
};

/// Sizes and attributes, for messages and for the keys of stored choices.
inline std::string text_of(const ConvShape& s) {
    std::string text =
        fmt::format("({}, {}, {}, {}) with ({}, {}, {}, {}), stride ({}, {}), padding ({}, {})", s.n, s.c, s.h, s.w,
                    s.k, s.c / s.groups, s.kh, s.kw, s.stride.h, s.stride.w, s.pad.h, s.pad.w);
    if (s.dilation.h != 1 || s.dilation.w != 1) text += fmt::format(", dilation ({}, {})", s.dilation.h, s.dilation.w);
    if (s.groups != 1) text += fmt::format(", {} groups", s.groups);
    return text;
}

}  // namespace lockstep::cpu
