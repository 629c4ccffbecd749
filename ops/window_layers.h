// Layers that surround images with elements, and that cut them into windows. Names and arguments are PyTorch's.
#pragma once

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// Elements on each side of an image: `1` for all, or `{left, right, top, bottom}`. Negative numbers crop.
struct Margins {
    int left, right, top, bottom;
    constexpr Margins(int all) : Margins(all, all, all, all) {}  // NOLINT(google-explicit-constructor)
    constexpr Margins(int on_left, int on_right, int on_top, int on_bottom)
        : left(on_left), right(on_right), top(on_top), bottom(on_bottom) {}
};

/// Surrounds x (..., H, W) by `margins`. The layers below have one mode each.
struct Padding2d : PlainLayer {
    Padding2d(const Margins& sides, PaddingMode kind) : margins(sides), mode(kind) {}

    Margins margins;
    PaddingMode mode;

    Tensor forward(const Tensor& x) const {
        return pad(x, {margins.left, margins.right, margins.top, margins.bottom}, mode);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(margins.left).add(margins.right).add(margins.top).add(margins.bottom).add(mode);
    }
};

/// torch.nn.ZeroPad2d.
struct ZeroPad2d : Padding2d {
    explicit ZeroPad2d(const Margins& sides) : Padding2d(sides, PaddingMode::zeros) {}
};

/// torch.nn.ReflectionPad2d.
struct ReflectionPad2d : Padding2d {
    explicit ReflectionPad2d(const Margins& sides) : Padding2d(sides, PaddingMode::reflect) {}
};

/// torch.nn.ReplicationPad2d.
struct ReplicationPad2d : Padding2d {
    explicit ReplicationPad2d(const Margins& sides) : Padding2d(sides, PaddingMode::replicate) {}
};

/// torch.nn.CircularPad2d.
struct CircularPad2d : Padding2d {
    explicit CircularPad2d(const Margins& sides) : Padding2d(sides, PaddingMode::circular) {}
};

/// Options of Unfold and Fold.
struct WindowOptions {
    Pair dilation = 1;
    Pair padding = 0;
    Pair stride = 1;
};

/// torch.nn.Unfold.
struct Unfold : PlainLayer {
    explicit Unfold(Pair window, const WindowOptions& chosen = {}) : kernel_size(window), options(chosen) {}

    Pair kernel_size;
    WindowOptions options;

    Tensor forward(const Tensor& x) const {
        return unfold(x, kernel_size, options.dilation, options.padding, options.stride);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(kernel_size.h).add(kernel_size.w).add(options.dilation.h).add(options.dilation.w);
        signature.add(options.padding.h).add(options.padding.w).add(options.stride.h).add(options.stride.w);
    }
};

/// torch.nn.Fold.
struct Fold : PlainLayer {
    Fold(Pair size, Pair window, const WindowOptions& chosen = {})
        : output_size(size), kernel_size(window), options(chosen) {}

    Pair output_size, kernel_size;
    WindowOptions options;

    Tensor forward(const Tensor& x) const {
        return fold(x, output_size, kernel_size, options.dilation, options.padding, options.stride);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        signature.add(output_size.h).add(output_size.w).add(kernel_size.h).add(kernel_size.w);
        signature.add(options.dilation.h).add(options.dilation.w).add(options.padding.h).add(options.padding.w);
        signature.add(options.stride.h).add(options.stride.w);
    }
};

}  // namespace lockstep
