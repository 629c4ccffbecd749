// Layers for volumes x (N, C, D, H, W). Names, arguments and initial values are PyTorch's; BatchNorm3d is in layers.h.
#pragma once

#include <initializer_list>
#include <optional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

namespace detail {

inline void add_triples(Signature& signature, std::initializer_list<Triple> all) {
    for (const Triple& triple : all) signature.add(triple.d).add(triple.h).add(triple.w);
}

}  // namespace detail

/// Options of Conv3d.
struct Conv3dOptions {
    Triple stride = 1;
    Triple padding = 0;
    Triple dilation = 1;
    std::int64_t groups = 1;  ///< divides both numbers of channels
    bool bias = true;
    PaddingMode padding_mode = PaddingMode::zeros;
};

/// torch.nn.Conv3d. weight (out, in / groups, kd, kh, kw) and bias (out) ~ U(-1/sqrt(n), 1/sqrt(n)), with
/// n = in / groups kd kh kw.
struct Conv3d {
    Conv3d(std::int64_t in_channels, std::int64_t out_channels, Triple kernel_size, const Conv3dOptions& options = {});

    Parameter weight;
    std::optional<Parameter> bias;
    Triple stride, padding, dilation;
    std::int64_t groups;
    PaddingMode padding_mode;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        detail::add_triples(signature, {stride, padding, dilation});
        signature.add(groups).add(padding_mode);
    }
};

/// Options of ConvTranspose3d.
struct ConvTranspose3dOptions {
    Triple stride = 1;
    Triple padding = 0;
    Triple output_padding = 0;
    std::int64_t groups = 1;  ///< divides both numbers of channels
    bool bias = true;
    Triple dilation = 1;
};

/// torch.nn.ConvTranspose3d. weight (in, out / groups, kd, kh, kw) and bias (out) ~ U(-1/sqrt(n), 1/sqrt(n)), with
/// n = out / groups kd kh kw.
struct ConvTranspose3d {
    ConvTranspose3d(std::int64_t in_channels, std::int64_t out_channels, Triple kernel_size,
                    const ConvTranspose3dOptions& options = {});

    Parameter weight;
    std::optional<Parameter> bias;
    ConvTranspose3dOptions options;
    LOCKSTEP_MEMBERS(weight, bias)

    Tensor forward(const Tensor& x) const;
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        detail::add_triples(signature, {options.stride, options.padding, options.output_padding, options.dilation});
        signature.add(options.groups);
    }
};

/// torch.nn.MaxPool3d; the stride is the window unless given. `round_up` is ceil_mode, `distance` the dilation.
struct MaxPool3d : PlainLayer {
    explicit MaxPool3d(Triple window, std::optional<Triple> step = std::nullopt, Triple margin = 0,
                       bool round_up = false, Triple distance = 1);

    Triple kernel_size, stride, padding, dilation;
    bool ceil_mode;

    Tensor forward(const Tensor& x) const { return max_pool3d(x, kernel_size, stride, padding, ceil_mode, dilation); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        detail::add_triples(signature, {kernel_size, stride, padding, dilation});
        signature.add(ceil_mode);
    }
};

/// torch.nn.MaxUnpool3d, of x and the indices of max_pool3d_with_indices; the stride is the window unless given.
struct MaxUnpool3d : PlainLayer {
    explicit MaxUnpool3d(Triple window, std::optional<Triple> step = std::nullopt, Triple margin = 0);

    Triple kernel_size, stride, padding;

    Tensor forward(const Tensor& x, const Tensor& indices, std::optional<Triple> output_size = std::nullopt) const {
        return max_unpool3d(x, indices, kernel_size, stride, padding, output_size);
    }
    Tensor operator()(const Tensor& x, const Tensor& indices) const { return forward(x, indices); }
    void describe(Signature& signature) const { detail::add_triples(signature, {kernel_size, stride, padding}); }
};

/// torch.nn.AvgPool3d; the stride is the window unless given. `with_padding` is count_include_pad, `round_up`
/// ceil_mode, `divisor` divisor_override.
struct AvgPool3d : PlainLayer {
    explicit AvgPool3d(Triple window, std::optional<Triple> step = std::nullopt, Triple margin = 0,
                       bool with_padding = true, bool round_up = false,
                       std::optional<std::int64_t> divisor = std::nullopt);

    Triple kernel_size, stride, padding;
    bool count_include_pad, ceil_mode;
    std::optional<std::int64_t> divisor_override;

    Tensor forward(const Tensor& x) const {
        return avg_pool3d(x, kernel_size, stride, padding, count_include_pad, ceil_mode, divisor_override);
    }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        detail::add_triples(signature, {kernel_size, stride, padding});
        signature.add(count_include_pad).add(ceil_mode);
        signature.add(divisor_override.has_value()).add(divisor_override.value_or(0));
    }
};

/// torch.nn.LPPool3d; the stride is the window unless given. `round_up` is ceil_mode.
struct LPPool3d : PlainLayer {
    explicit LPPool3d(double order, Triple window, std::optional<Triple> step = std::nullopt, bool round_up = false);

    double norm_type;
    Triple kernel_size, stride;
    bool ceil_mode;

    Tensor forward(const Tensor& x) const { return lp_pool3d(x, norm_type, kernel_size, stride, ceil_mode); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const {
        detail::add_triples(signature, {kernel_size, stride});
        signature.add(norm_type).add(ceil_mode);
    }
};

/// torch.nn.AdaptiveMaxPool3d.
struct AdaptiveMaxPool3d : PlainLayer {
    explicit AdaptiveMaxPool3d(Triple size);

    Triple output_size;

    Tensor forward(const Tensor& x) const { return adaptive_max_pool3d(x, output_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { detail::add_triples(signature, {output_size}); }
};

/// torch.nn.AdaptiveAvgPool3d.
struct AdaptiveAvgPool3d : PlainLayer {
    explicit AdaptiveAvgPool3d(Triple size);

    Triple output_size;

    Tensor forward(const Tensor& x) const { return adaptive_avg_pool3d(x, output_size); }
    Tensor operator()(const Tensor& x) const { return forward(x); }
    void describe(Signature& signature) const { detail::add_triples(signature, {output_size}); }
};

}  // namespace lockstep
