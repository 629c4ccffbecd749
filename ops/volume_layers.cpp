#include "lockstep/ops/volume_layers.h"

#include <cmath>

#include "lockstep/ops/internal/initial_values.h"

namespace lockstep {

namespace {

void require_triple(const char* layer, const char* argument, const Triple& value, int least) {
    require_pair(layer, argument, {value.h, value.w}, least);
    require_pair(layer, argument, value.d, least);
}

void require_window(const char* layer, const Triple& window, const Triple& stride, const Triple& padding) {
    require_triple(layer, "kernel_size", window, 1);
    require_triple(layer, "stride", stride, 1);
    require_triple(layer, "padding", padding, 0);
}

/// PyTorch's initial values for weights and biases: U(-1/sqrt(n), 1/sqrt(n)) with n products in a sum.
double conv3d_bound(std::int64_t in, const Triple& window, std::int64_t groups) {
    return 1 / std::sqrt(static_cast<double>(in / groups * window.d * window.h * window.w));
}

Tensor conv3d_weight(std::int64_t in, std::int64_t out, const Triple& window, const Conv3dOptions& options) {
    require_positive("Conv3d", "in_channels", in);
    require_positive("Conv3d", "out_channels", out);
    require_window("Conv3d", window, options.stride, options.padding);
    require_triple("Conv3d", "dilation", options.dilation, 1);
    require_groups("Conv3d", in, out, options.groups);
    return uniform_values({out, in / options.groups, window.d, window.h, window.w},
                          conv3d_bound(in, window, options.groups));
}

Tensor conv_transpose3d_weight(std::int64_t in, std::int64_t out, const Triple& window,
                               const ConvTranspose3dOptions& options) {
    constexpr const char* name = "ConvTranspose3d";
    require_positive(name, "in_channels", in);
    require_positive(name, "out_channels", out);
    require_window(name, window, options.stride, options.padding);
    require_triple(name, "output_padding", options.output_padding, 0);
    require_triple(name, "dilation", options.dilation, 1);
    require_groups(name, in, out, options.groups);
    return uniform_values({in, out / options.groups, window.d, window.h, window.w},
                          conv3d_bound(out, window, options.groups));
}

}  // namespace

ConvTranspose3d::ConvTranspose3d(std::int64_t in_channels, std::int64_t out_channels, Triple kernel_size,
                                 const ConvTranspose3dOptions& how)
    : weight(conv_transpose3d_weight(in_channels, out_channels, kernel_size, how)), options(how) {
    if (options.bias)
        bias.emplace(uniform_values({out_channels}, conv3d_bound(out_channels, kernel_size, options.groups)));
}

Tensor ConvTranspose3d::forward(const Tensor& x) const {
    return conv_transpose3d(x, weight, value_or_none(bias), options.stride, options.padding, options.output_padding,
                            options.groups, options.dilation);
}

Conv3d::Conv3d(std::int64_t in_channels, std::int64_t out_channels, Triple kernel_size, const Conv3dOptions& options)
    : weight(conv3d_weight(in_channels, out_channels, kernel_size, options)),
      stride(options.stride),
      padding(options.padding),
      dilation(options.dilation),
      groups(options.groups),
      padding_mode(options.padding_mode) {
    if (options.bias) bias.emplace(uniform_values({out_channels}, conv3d_bound(in_channels, kernel_size, groups)));
}

Tensor Conv3d::forward(const Tensor& x) const {
    if (padding_mode == PaddingMode::zeros)
        return conv3d(x, weight, value_or_none(bias), stride, padding, dilation, groups);
    const Tensor surrounded = pad(x, {padding.w, padding.w, padding.h, padding.h, padding.d, padding.d}, padding_mode);
    return conv3d(surrounded, weight, value_or_none(bias), stride, 0, dilation, groups);
}

MaxPool3d::MaxPool3d(Triple window, std::optional<Triple> step, Triple margin, bool round_up, Triple distance)
    : kernel_size(window), stride(step.value_or(window)), padding(margin), dilation(distance), ceil_mode(round_up) {
    require_window("MaxPool3d", kernel_size, stride, padding);
    require_triple("MaxPool3d", "dilation", dilation, 1);
}

MaxUnpool3d::MaxUnpool3d(Triple window, std::optional<Triple> step, Triple margin)
    : kernel_size(window), stride(step.value_or(window)), padding(margin) {
    require_window("MaxUnpool3d", kernel_size, stride, padding);
}

AvgPool3d::AvgPool3d(Triple window, std::optional<Triple> step, Triple margin, bool with_padding, bool round_up,
                     std::optional<std::int64_t> divisor)
    : kernel_size(window),
      stride(step.value_or(window)),
      padding(margin),
      count_include_pad(with_padding),
      ceil_mode(round_up),
      divisor_override(divisor) {
    require_window("AvgPool3d", kernel_size, stride, padding);
}

LPPool3d::LPPool3d(double order, Triple window, std::optional<Triple> step, bool round_up)
    : norm_type(order), kernel_size(window), stride(step.value_or(window)), ceil_mode(round_up) {
    require_window("LPPool3d", kernel_size, stride, 0);
}

AdaptiveMaxPool3d::AdaptiveMaxPool3d(Triple size) : output_size(size) {
    require_triple("AdaptiveMaxPool3d", "output_size", size, 1);
}

AdaptiveAvgPool3d::AdaptiveAvgPool3d(Triple size) : output_size(size) {
    require_triple("AdaptiveAvgPool3d", "output_size", size, 1);
}

}  // namespace lockstep
