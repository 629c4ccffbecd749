// Layers that surround sequences, images and volumes with elements, and that cut images into windows. Names and
// arguments are PyTorch's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// Elements on each side: `1` for all, or `{left, right}`, `{left, right, top, bottom}` or `{left, right, top, bottom,
/// front, back}` for sequences, images or volumes. Negative numbers crop.
template <int dimensions>
struct Margins {
    std::array<int, 2 * static_cast<std::size_t>(dimensions)> sides;
    constexpr Margins(int all) { sides.fill(all); }  // NOLINT(google-explicit-constructor)
    template <class... Rest>
    requires(sizeof...(Rest) + 1 == 2 * dimensions) constexpr Margins(int left, Rest... rest) : sides{left, rest...} {}
};

/// Surrounds the last dimensions of x by `margins`. The layers below have one mode each.
template <int dimensions>
struct PaddingLayer : PlainLayer {
    PaddingLayer(const Margins<dimensions>& around, PaddingMode kind, double number = 0)
        : margins(around), mode(kind), value(number) {}

    Margins<dimensions> margins;
    PaddingMode mode;
    double value;  ///< the new elements, if the mode is zeros

    Tensor forward(const Tensor& x) const {
        const std::vector<std::int64_t> amounts(margins.sides.begin(), margins.sides.end());
        return mode == PaddingMode::zeros ? pad(x, amounts, value) : pad(x, amounts, mode);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        for (const int side : margins.sides) signature.add(side);
        signature.add(mode).add(value);
    }
};

/// torch.nn.ConstantPad1d.
struct ConstantPad1d : PaddingLayer<1> {
    ConstantPad1d(const Margins<1>& around, double number) : PaddingLayer(around, PaddingMode::zeros, number) {}
};

/// torch.nn.ConstantPad2d.
struct ConstantPad2d : PaddingLayer<2> {
    ConstantPad2d(const Margins<2>& around, double number) : PaddingLayer(around, PaddingMode::zeros, number) {}
};

/// torch.nn.ConstantPad3d.
struct ConstantPad3d : PaddingLayer<3> {
    ConstantPad3d(const Margins<3>& around, double number) : PaddingLayer(around, PaddingMode::zeros, number) {}
};

/// torch.nn.ZeroPad1d.
struct ZeroPad1d : PaddingLayer<1> {
    explicit ZeroPad1d(const Margins<1>& around) : PaddingLayer(around, PaddingMode::zeros) {}
};

/// torch.nn.ZeroPad2d.
struct ZeroPad2d : PaddingLayer<2> {
    explicit ZeroPad2d(const Margins<2>& around) : PaddingLayer(around, PaddingMode::zeros) {}
};

/// torch.nn.ZeroPad3d.
struct ZeroPad3d : PaddingLayer<3> {
    explicit ZeroPad3d(const Margins<3>& around) : PaddingLayer(around, PaddingMode::zeros) {}
};

/// torch.nn.ReflectionPad1d.
struct ReflectionPad1d : PaddingLayer<1> {
    explicit ReflectionPad1d(const Margins<1>& around) : PaddingLayer(around, PaddingMode::reflect) {}
};

/// torch.nn.ReflectionPad2d.
struct ReflectionPad2d : PaddingLayer<2> {
    explicit ReflectionPad2d(const Margins<2>& around) : PaddingLayer(around, PaddingMode::reflect) {}
};

/// torch.nn.ReflectionPad3d.
struct ReflectionPad3d : PaddingLayer<3> {
    explicit ReflectionPad3d(const Margins<3>& around) : PaddingLayer(around, PaddingMode::reflect) {}
};

/// torch.nn.ReplicationPad1d.
struct ReplicationPad1d : PaddingLayer<1> {
    explicit ReplicationPad1d(const Margins<1>& around) : PaddingLayer(around, PaddingMode::replicate) {}
};

/// torch.nn.ReplicationPad2d.
struct ReplicationPad2d : PaddingLayer<2> {
    explicit ReplicationPad2d(const Margins<2>& around) : PaddingLayer(around, PaddingMode::replicate) {}
};

/// torch.nn.ReplicationPad3d.
struct ReplicationPad3d : PaddingLayer<3> {
    explicit ReplicationPad3d(const Margins<3>& around) : PaddingLayer(around, PaddingMode::replicate) {}
};

/// torch.nn.CircularPad1d.
struct CircularPad1d : PaddingLayer<1> {
    explicit CircularPad1d(const Margins<1>& around) : PaddingLayer(around, PaddingMode::circular) {}
};

/// torch.nn.CircularPad2d.
struct CircularPad2d : PaddingLayer<2> {
    explicit CircularPad2d(const Margins<2>& around) : PaddingLayer(around, PaddingMode::circular) {}
};

/// torch.nn.CircularPad3d.
struct CircularPad3d : PaddingLayer<3> {
    explicit CircularPad3d(const Margins<3>& around) : PaddingLayer(around, PaddingMode::circular) {}
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
