// Convolution and pooling.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Attributes of `name`, after a check of each.
ConvGeometry geometry_of(const char* name, Pair stride, Pair padding, Pair dilation, std::int64_t groups) {
    if (stride.h < 1 || stride.w < 1 || padding.h < 0 || padding.w < 0)
        throw InvalidArgument(fmt::format(
            "{}: invalid stride ({}, {}) or padding ({}, {}); expected a positive stride and padding of 0 or more",
            name, stride.h, stride.w, padding.h, padding.w));
    if (dilation.h < 1 || dilation.w < 1)
        throw InvalidArgument(
            fmt::format("{}: invalid dilation ({}, {}); expected positive numbers", name, dilation.h, dilation.w));
    if (groups < 1)
        throw InvalidArgument(fmt::format("{}: invalid groups ({}); expected a positive number", name, groups));
    return {stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w, groups};
}

/// Checks that x has `channels` channels in each group, and that the groups of weight.size(0) are equal.
void check_channels(const char* name, const Tensor& x, const Tensor& weight, std::int64_t channels,
                    std::int64_t groups) {
    if (x.size(1) % groups != 0 || x.size(1) / groups != channels)
        throw InvalidArgument(fmt::format("{}: input {} has {} channels; weight {} expects {}{}", name, x.shape().str(),
                                          x.size(1), weight.shape().str(), channels,
                                          groups == 1 ? "" : fmt::format(" in each of {} groups", groups)));
    if (weight.size(0) % groups != 0)
        throw InvalidArgument(
            fmt::format("{}: dimension 0 of weight {} is not a multiple of groups ({}); expected equal groups", name,
                        weight.shape().str(), groups));
}

/// Elements of the input from the first to the last that a window reads.
std::int64_t extent(std::int64_t kernel, int dilation) { return dilation * (kernel - 1) + 1; }

// A convolution y(x, weight) is linear in both arguments, and so are its gradients dx(dy, weight) and dweight(x, dy):
// the gradients of each of these three functions are the two others.

struct WeightGradients {
    Tensor weight, bias;
};

Tensor convolved(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const ConvGeometry& geometry, const Shape& shape);
WeightGradients weight_gradients(const char* name, const Tensor& x, const Tensor& dy, const ConvGeometry& geometry,
                                 const TensorMeta& dw, bool with_bias);

Tensor data_gradient(const char* name, const Tensor& dy, const Tensor& weight, const ConvGeometry& geometry,
                     const TensorMeta& dx) {
    const Tensor made = apply_one(Conv2dBackwardData{geometry}, {dy, weight}, dx);
    if (!needs_autograd({dy, weight})) return made;
    const bool dy_wanted = dy.requires_grad(), weight_wanted = weight.requires_grad();
    SavedTensor upstream, weights;
    if (weight_wanted) upstream = SavedTensor(dy, name);
    if (dy_wanted) weights = SavedTensor(weight, name);
    add_autograd_node(
        name, {dy, weight}, {made},
        BackwardFunction::composed([=, of_dy = like(dy), dw = like(weight)](const auto& gradients) {
            std::vector<Tensor> result(2);
            if (dy_wanted)
                result[0] =
                    tagged(convolved(name, gradients[0], weights.get(), Tensor(), geometry, of_dy.shape), of_dy.batch);
            if (weight_wanted)
                result[1] = weight_gradients(name, gradients[0], upstream.get(), geometry, dw, false).weight;
            return result;
        }));
    return made;
}

WeightGradients weight_gradients(const char* name, const Tensor& x, const Tensor& dy, const ConvGeometry& geometry,
                                 const TensorMeta& dw, bool with_bias) {
    const bool differentiable = needs_autograd({x, dy});
    const Output db = with_bias && !differentiable ? Output(TensorMeta::contiguous(dw.dtype, {dw.shape[0]})) : Output();
    const auto made = apply(make_operation(Conv2dBackwardWeights{geometry}), {x, dy}, {dw, db});
    if (!differentiable) return {made[0], made[1]};
    const bool x_wanted = x.requires_grad(), dy_wanted = dy.requires_grad();
    SavedTensor input, upstream;
    if (dy_wanted) input = SavedTensor(x, name);
    if (x_wanted) upstream = SavedTensor(dy, name);
    add_autograd_node(name, {x, dy}, {made[0]},
                      BackwardFunction::composed([=, dx = like(x), of_dy = like(dy)](const auto& gradients) {
                          std::vector<Tensor> result(2);
                          if (x_wanted) result[0] = data_gradient(name, upstream.get(), gradients[0], geometry, dx);
                          if (dy_wanted)
                              result[1] =
                                  tagged(convolved(name, input.get(), gradients[0], Tensor(), geometry, of_dy.shape),
                                         of_dy.batch);
                          return result;
                      }));
    return {made[0], with_bias ? sum(dy, {0, 2, 3}) : Tensor()};
}

Tensor convolved(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const ConvGeometry& geometry, const Shape& shape) {
    const Tensor y = apply_one(Conv2dForward{geometry}, {x, weight, bias}, shaped(x, shape, x.is_batch()));
    if (!needs_autograd({x, weight, bias})) return y;
    const bool x_wanted = x.requires_grad();
    const bool bias_wanted = bias.defined() && bias.requires_grad();
    const bool weights_wanted = weight.requires_grad() || bias_wanted;
    SavedTensor input, weights;
    if (weights_wanted) input = SavedTensor(x, name);
    if (x_wanted) weights = SavedTensor(weight, name);
    add_autograd_node(name, {x, weight, bias}, {y},
                      BackwardFunction::composed([=, dx = like(x), dw = like(weight)](const auto& gradients) {
                          std::vector<Tensor> result(3);
                          if (x_wanted) result[0] = data_gradient(name, gradients[0], weights.get(), geometry, dx);
                          if (weights_wanted) {
                              const auto [of_weight, of_bias] =
                                  weight_gradients(name, input.get(), gradients[0], geometry, dw, bias_wanted);
                              result[1] = of_weight;
                              result[2] = of_bias;
                          }
                          return result;
                      }));
    return y;
}

}  // namespace

Tensor conv2d(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias, Pair stride, Pair padding,
              Pair dilation, std::int64_t groups) {
    const CheckedArgs call("conv2d", {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                      arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    checks::dims("conv2d", "input", x, 4, "(N, C, H, W)");
    checks::dims("conv2d", "weight", weight, 4, "(out channels, in channels / groups, kernel height, kernel width)");
    const ConvGeometry geometry = geometry_of("conv2d", stride, padding, dilation, groups);
    check_channels("conv2d", x, weight, weight.size(1), groups);
    checks::vector_of("conv2d", "bias", bias, weight.size(0), "output channel");
    const std::int64_t room_h = x.size(2) + 2 * std::int64_t{padding.h} - extent(weight.size(2), dilation.h);
    const std::int64_t room_w = x.size(3) + 2 * std::int64_t{padding.w} - extent(weight.size(3), dilation.w);
    if (room_h < 0 || room_w < 0 || weight.numel() == 0)
        throw InvalidArgument(fmt::format(
            "conv2d: weight {} does not fit in input {} with padding ({}, {}){}; expected a window within "
            "the padded input",
            weight.shape().str(), x.shape().str(), padding.h, padding.w,
            dilation.h == 1 && dilation.w == 1 ? "" : fmt::format(" and dilation ({}, {})", dilation.h, dilation.w)));

    const Shape shape{x.size(0), weight.size(0), room_h / stride.h + 1, room_w / stride.w + 1};
    return convolved("conv2d", x, weight, bias, geometry, shape);
}

Tensor conv_transpose2d(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias, Pair stride,
                        Pair padding, Pair output_padding, std::int64_t groups, Pair dilation) {
    constexpr const char* name = "conv_transpose2d";
    const CheckedArgs call(name, {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                  arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    checks::dims(name, "weight", weight, 4, "(in channels, out channels / groups, kernel height, kernel width)");
    const ConvGeometry geometry = geometry_of(name, stride, padding, dilation, groups);
    check_channels(name, x, weight, weight.size(0) / groups, groups);
    const std::int64_t channels = weight.size(1) * groups;
    checks::vector_of(name, "bias", bias, channels, "output channel");
    const Pair most{std::max(stride.h, dilation.h), std::max(stride.w, dilation.w)};
    if (output_padding.h < 0 || output_padding.w < 0 || output_padding.h >= most.h || output_padding.w >= most.w)
        throw InvalidArgument(fmt::format(
            "conv_transpose2d: invalid output_padding ({}, {}); expected 0 or more, and less than stride ({}, {}) or "
            "dilation ({}, {})",
            output_padding.h, output_padding.w, stride.h, stride.w, dilation.h, dilation.w));
    const auto size = [](std::int64_t in, int step, int pad, std::int64_t window, int more) {
        return (in - 1) * step - 2 * std::int64_t{pad} + window + more;
    };
    const Shape shape{x.size(0), channels,
                      size(x.size(2), stride.h, padding.h, extent(weight.size(2), dilation.h), output_padding.h),
                      size(x.size(3), stride.w, padding.w, extent(weight.size(3), dilation.w), output_padding.w)};
    if (x.size(2) < 1 || x.size(3) < 1 || shape[2] < 1 || shape[3] < 1 || weight.numel() == 0)
        throw InvalidArgument(
            fmt::format("conv_transpose2d: the output of input {} with weight {} and padding ({}, {}) is empty; "
                        "expected less padding",
                        x.shape().str(), weight.shape().str(), padding.h, padding.w));
    // conv2d maps the result to as many rows as x has, plus one for every whole stride of output padding.
    const int rows = output_padding.h / stride.h, columns = output_padding.w / stride.w;
    const Tensor all = rows > 0 || columns > 0 ? pad(x, {0, columns, 0, rows}) : x;
    const Tensor y = data_gradient(name, all, weight, geometry, shaped(all, shape, all.is_batch()));
    return bias.defined() ? add(y, bias.reshape({bias.size(0), 1, 1})) : y;
}

namespace {

/// The elements of g (N, C, H, W) that `position` (N, C, OH, OW) chose from each window.
Tensor chosen_of_windows(const Tensor& g, const Tensor& position, const PoolGeometry& window) {
    const Tensor around = pad(g, {window.pad_w, window.pad_w, window.pad_h, window.pad_h});
    Tensor y = tagged(Tensor::zeros(position.shape(), g.dtype(), g.device()), g.is_batch());
    for (int k = 0; k < window.kernel_h * window.kernel_w; ++k) {
        const std::int64_t top = k / window.kernel_w, left = k % window.kernel_w;
        const Tensor elements =
            around.slice(2, top, top + (position.size(2) - 1) * window.stride_h + 1, window.stride_h)
                .slice(3, left, left + (position.size(3) - 1) * window.stride_w + 1, window.stride_w);
        y = where(eq(position, k), elements, y);
    }
    return y;
}

Tensor max_pool_gradient(const Tensor& dy, const Tensor& position, const PoolGeometry& window, const TensorMeta& dx) {
    constexpr const char* name = "max_pool2d";
    const Tensor made = apply_one(MaxPool2dBackward{window}, {dy, position}, dx);
    if (needs_autograd({dy}))
        add_autograd_node(
            name, {dy}, {made},
            BackwardFunction::composed([window, saved = SavedTensor(position, name)](const auto& gradients) {
                return std::vector<Tensor>{chosen_of_windows(gradients[0], saved.get(), window)};
            }));
    return made;
}

}  // namespace

Tensor max_pool2d(const Tensor& given, Pair kernel_size, std::optional<Pair> stride, Pair padding, bool ceil_mode,
                  Pair dilation) {
    const CheckedArgs call("max_pool2d", {arg::floating("input", given)});
    const Tensor& x = call[0];
    if (dilation.h != 1 || dilation.w != 1)
        return max_pool2d_with_indices(x, kernel_size, stride, padding, ceil_mode, dilation).values;
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

    if (ceil_mode) {
        // One more window where some elements are left, unless it begins after the elements and the padding before
        // them.
        const auto missing = [](std::int64_t room, std::int64_t size, int every, int around) {
            const std::int64_t begin = (room / every + 1) * every;
            return room % every == 0 || begin >= size + around ? 0 : begin - room;
        };
        const std::int64_t below = missing(room_h, x.size(2), step.h, padding.h),
                           right = missing(room_w, x.size(3), step.w, padding.w);
        if (below > 0 || right > 0)
            return max_pool2d(pad(x, {0, right, 0, below}, -std::numeric_limits<double>::infinity()), kernel_size, step,
                              padding);
    }

    const PoolGeometry geometry{kernel_size.h, kernel_size.w, step.h, step.w, padding.h, padding.w};
    const Shape shape{x.size(0), x.size(1), room_h / step.h + 1, room_w / step.w + 1};
    const auto made = apply(make_operation(MaxPool2dForward{geometry}), {x},
                            {shaped(x, shape, x.is_batch()), TensorMeta::contiguous(DType::u8, shape, x.is_batch())});
    if (needs_autograd({x}))
        add_autograd_node("max_pool2d", {x}, {made[0]},
                          BackwardFunction::composed([geometry, position = SavedTensor(made[1], "max_pool2d"),
                                                      dx = like(x)](const std::vector<Tensor>& gradients) {
                              return std::vector<Tensor>{max_pool_gradient(gradients[0], position.get(), geometry, dx)};
                          }));
    return made[0];
}

}  // namespace lockstep
