// Convolution and pooling.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

Tensor conv2d(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias, Pair stride, Pair padding) {
    const CheckedArgs call("conv2d", {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                      arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    checks::dims("conv2d", "input", x, 4, "(N, C, H, W)");
    checks::dims("conv2d", "weight", weight, 4, "(out channels, in channels, kernel height, kernel width)");
    if (x.size(1) != weight.size(1))
        throw InvalidArgument(fmt::format("conv2d: input {} has {} channels; weight {} expects {}", x.shape().str(),
                                          x.size(1), weight.shape().str(), weight.size(1)));
    checks::vector_of("conv2d", "bias", bias, weight.size(0), "output channel");
    if (stride.h < 1 || stride.w < 1 || padding.h < 0 || padding.w < 0)
        throw InvalidArgument(fmt::format(
            "conv2d: invalid stride ({}, {}) or padding ({}, {}); expected a positive stride and padding of 0 or more",
            stride.h, stride.w, padding.h, padding.w));
    const std::int64_t room_h = x.size(2) + 2 * padding.h - weight.size(2);
    const std::int64_t room_w = x.size(3) + 2 * padding.w - weight.size(3);
    if (room_h < 0 || room_w < 0 || weight.numel() == 0)
        throw InvalidArgument(
            fmt::format("conv2d: weight {} does not fit in input {} with padding ({}, {}); expected a window within "
                        "the padded input",
                        weight.shape().str(), x.shape().str(), padding.h, padding.w));

    const ConvGeometry geometry{stride.h, stride.w, padding.h, padding.w};
    const Shape shape{x.size(0), weight.size(0), room_h / stride.h + 1, room_w / stride.w + 1};
    const Tensor y = apply_one(Conv2dForward{geometry}, {x, weight, bias}, shaped(x, shape, x.is_batch()));
    if (!needs_autograd({x, weight, bias})) return y;
    const bool x_wanted = x.requires_grad();
    const bool bias_wanted = bias.defined() && bias.requires_grad();
    const bool weights_wanted = weight.requires_grad() || bias_wanted;
    SavedTensor input, weights;
    if (weights_wanted) input = SavedTensor(x, "conv2d");
    if (x_wanted) weights = SavedTensor(weight, "conv2d");
    add_autograd_node(
        "conv2d", {x, weight, bias}, {y}, [=, dx = like(x), dw = like(weight)](const std::vector<Tensor>& gradients) {
            std::vector<Tensor> result(3);
            if (x_wanted) result[0] = apply_one(Conv2dBackwardData{geometry}, {gradients[0], weights.get()}, dx);
            if (weights_wanted) {
                const Output db = bias_wanted ? Output(TensorMeta::contiguous(dw.dtype, {dw.shape[0]})) : Output();
                const auto made =
                    apply(make_operation(Conv2dBackwardWeights{geometry}), {input.get(), gradients[0]}, {dw, db});
                result[1] = made[0];
                result[2] = made[1];
            }
            return result;
        });
    return y;
}

namespace {

/// Implements conv_transpose2d and its gradients: the operations of conv2d with input and result exchanged.
Tensor transposed_convolution(const Tensor& x, const Tensor& weight, const ConvGeometry& geometry, const Shape& shape) {
    constexpr const char* name = "conv_transpose2d";
    const Tensor y = apply_one(Conv2dBackwardData{geometry}, {x, weight}, shaped(x, shape, x.is_batch()));
    if (!needs_autograd({x, weight})) return y;
    const bool x_wanted = x.requires_grad(), weight_wanted = weight.requires_grad();
    SavedTensor input, weights;
    if (weight_wanted) input = SavedTensor(x, name);
    if (x_wanted) weights = SavedTensor(weight, name);
    add_autograd_node(
        name, {x, weight}, {y}, [=, dx = like(x), dw = like(weight)](const std::vector<Tensor>& gradients) {
            std::vector<Tensor> result(2);
            if (x_wanted) result[0] = apply_one(Conv2dForward{geometry}, {gradients[0], weights.get(), Tensor()}, dx);
            if (weight_wanted)
                result[1] = apply(make_operation(Conv2dBackwardWeights{geometry}), {gradients[0], input.get()},
                                  {dw, Output()})[0];
            return result;
        });
    return y;
}

}  // namespace

Tensor conv_transpose2d(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias, Pair stride,
                        Pair padding, Pair output_padding) {
    constexpr const char* name = "conv_transpose2d";
    const CheckedArgs call(name, {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                  arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    checks::dims(name, "weight", weight, 4, "(in channels, out channels, kernel height, kernel width)");
    if (x.size(1) != weight.size(0))
        throw InvalidArgument(fmt::format("conv_transpose2d: input {} has {} channels; weight {} expects {}",
                                          x.shape().str(), x.size(1), weight.shape().str(), weight.size(0)));
    checks::vector_of(name, "bias", bias, weight.size(1), "output channel");
    if (stride.h < 1 || stride.w < 1 || padding.h < 0 || padding.w < 0)
        throw InvalidArgument(
            fmt::format("conv_transpose2d: invalid stride ({}, {}) or padding ({}, {}); expected a positive stride and "
                        "padding of 0 or more",
                        stride.h, stride.w, padding.h, padding.w));
    if (output_padding.h < 0 || output_padding.w < 0 || output_padding.h >= stride.h || output_padding.w >= stride.w)
        throw InvalidArgument(fmt::format(
            "conv_transpose2d: invalid output_padding ({}, {}); expected 0 or more, and less than stride ({}, {})",
            output_padding.h, output_padding.w, stride.h, stride.w));
    const Shape shape{x.size(0), weight.size(1),
                      (x.size(2) - 1) * stride.h - 2 * padding.h + weight.size(2) + output_padding.h,
                      (x.size(3) - 1) * stride.w - 2 * padding.w + weight.size(3) + output_padding.w};
    if (x.size(2) < 1 || x.size(3) < 1 || shape[2] < 1 || shape[3] < 1 || weight.numel() == 0)
        throw InvalidArgument(
            fmt::format("conv_transpose2d: the output of input {} with weight {} and padding ({}, {}) is empty; "
                        "expected less padding",
                        x.shape().str(), weight.shape().str(), padding.h, padding.w));
    const Tensor y = transposed_convolution(x, weight, {stride.h, stride.w, padding.h, padding.w}, shape);
    return bias.defined() ? add(y, bias.reshape({bias.size(0), 1, 1})) : y;
}

Tensor max_pool2d(const Tensor& given, Pair kernel_size, std::optional<Pair> stride, Pair padding) {
    const CheckedArgs call("max_pool2d", {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims("max_pool2d", "input", x, 4, "(N, C, H, W)");
    const Pair step = stride.value_or(kernel_size);
    if (kernel_size.h < 1 || kernel_size.w < 1 || step.h < 1 || step.w < 1)
        throw InvalidArgument(
            fmt::format("max_pool2d: invalid window ({}, {}) or stride ({}, {}); expected positive numbers",
                        kernel_size.h, kernel_size.w, step.h, step.w));
    if (static_cast<std::int64_t>(kernel_size.h) * kernel_size.w > 255)
        throw InvalidArgument(
            fmt::format("max_pool2d: a window of ({}, {}) is too large; expected at most 255 elements", kernel_size.h,
                        kernel_size.w));
    if (padding.h < 0 || padding.w < 0 || 2 * padding.h > kernel_size.h || 2 * padding.w > kernel_size.w)
        throw InvalidArgument(
            fmt::format("max_pool2d: invalid padding ({}, {}); expected 0 to half of the window ({}, {})", padding.h,
                        padding.w, kernel_size.h, kernel_size.w));
    const std::int64_t room_h = x.size(2) + 2 * padding.h - kernel_size.h;
    const std::int64_t room_w = x.size(3) + 2 * padding.w - kernel_size.w;
    if (room_h < 0 || room_w < 0)
        throw InvalidArgument(
            fmt::format("max_pool2d: a window of ({}, {}) does not fit in input {} with padding ({}, {}); expected a "
                        "window within the padded input",
                        kernel_size.h, kernel_size.w, x.shape().str(), padding.h, padding.w));

    const PoolGeometry geometry{kernel_size.h, kernel_size.w, step.h, step.w, padding.h, padding.w};
    const Shape shape{x.size(0), x.size(1), room_h / step.h + 1, room_w / step.w + 1};
    const auto made = apply(make_operation(MaxPool2dForward{geometry}), {x},
                            {shaped(x, shape, x.is_batch()), TensorMeta::contiguous(DType::u8, shape, x.is_batch())});
    if (needs_autograd({x}))
        add_autograd_node(
            "max_pool2d", {x}, {made[0]},
            [geometry, where = SavedTensor(made[1], "max_pool2d"), dx = like(x)](const std::vector<Tensor>& gradients) {
                return std::vector<Tensor>{apply_one(MaxPool2dBackward{geometry}, {gradients[0], where.get()}, dx)};
            });
    return made[0];
}

}  // namespace lockstep
