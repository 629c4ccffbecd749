// Convolution and pooling of volumes, made of those of images: the taps of a convolution along the depth are channels,
// and pooling is first of the planes and then along the depth.
#include <fmt/format.h>

#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr const char* volumes = "(N, C, D, H, W)";

/// Planes of all depths as channels of images.
Tensor planes(const Tensor& x) {
    return tagged(x.reshape({x.size(0), x.size(1) * x.size(2), x.size(3), x.size(4)}), x.is_batch());
}

/// Images (N, C D, h, w) as images (N, C, D, h w) with the depth as height, which `pool` reduces; the result as
/// volumes.
template <class Pool>
Tensor along_depth(const Tensor& images, const Tensor& x, const Pool& pool) {
    const std::int64_t n = x.size(0), channels = x.size(1), h = images.size(2), w = images.size(3);
    const Tensor columns = tagged(images.reshape({n, channels, x.size(2), h * w}), x.is_batch());
    const Tensor pooled = pool(columns);
    return tagged(pooled.reshape({n, channels, pooled.size(2), h, w}), x.is_batch());
}

Pair of_planes(const Triple& all) { return {all.h, all.w}; }

}  // namespace

Tensor conv3d(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias, Triple stride,
              Triple padding, Triple dilation, std::int64_t groups) {
    constexpr const char* name = "conv3d";
    const CheckedArgs call(name, {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                  arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    checks::dims(name, "input", x, 5, volumes);
    checks::dims(name, "weight", weight, 5, "(K, C / groups, kd, kh, kw)");
    if (stride.d < 1 || padding.d < 0 || dilation.d < 1)
        throw InvalidArgument(
            fmt::format("{}: invalid stride ({}), padding ({}) or dilation ({}) of the depth; expected a positive "
                        "stride and dilation, and padding of 0 or more",
                        name, stride.d, padding.d, dilation.d));
    const std::int64_t taps = weight.size(2), depth = x.size(2) + 2 * std::int64_t{padding.d};
    const std::int64_t room = depth - dilation.d * (taps - 1) - 1;
    if (room < 0 || taps < 1)
        throw InvalidArgument(
            fmt::format("{}: weight {} does not fit in input {} with padding {} and dilation {} of the depth; expected "
                        "a window within the padded input",
                        name, weight.shape().str(), x.shape().str(), padding.d, dilation.d));
    const std::int64_t out_depth = room / stride.d + 1, n = x.size(0), channels = x.size(1);

    const Tensor padded = padding.d > 0 ? pad(x, {0, 0, 0, 0, padding.d, padding.d}) : x;
    std::vector<Tensor> slices;  // (N, D', C, H, W) each
    for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t first = tap * dilation.d;
        slices.push_back(
            padded.slice(2, first, first + (out_depth - 1) * stride.d + 1, stride.d).transpose(1, 2).tag_batch(false));
    }
    const Tensor images = stack(slices, 3).reshape({n * out_depth, channels * taps, x.size(3), x.size(4)});
    const Tensor filters = weight.reshape({weight.size(0), weight.size(1) * taps, weight.size(3), weight.size(4)});
    const Tensor y = conv2d(images, filters, bias, of_planes(stride), of_planes(padding), of_planes(dilation), groups);
    const Tensor made = y.reshape({n, out_depth, y.size(1), y.size(2), y.size(3)}).transpose(1, 2).contiguous();
    return tagged(made, x.is_batch());
}

Tensor conv_transpose3d(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias, Triple stride,
                        Triple padding, Triple output_padding, std::int64_t groups, Triple dilation) {
    constexpr const char* name = "conv_transpose3d";
    const CheckedArgs call(name, {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                  arg::optional("bias", given_bias)});
    const Tensor x = widened(call[0]), weight = widened(call[1]);
    checks::dims(name, "input", x, 5, volumes);
    checks::dims(name, "weight", weight, 5, "(C, K / groups, kd, kh, kw)");
    checks::vector_of(name, "bias", call[2], weight.size(1) * groups, "channel");
    const std::int64_t taps = weight.size(2), n = x.size(0), depth = x.size(2);
    if (stride.d < 1 || dilation.d < 1 || padding.d < 0 || output_padding.d < 0 ||
        (output_padding.d >= stride.d && output_padding.d >= dilation.d) || taps < 1 || depth < 1)
        throw InvalidArgument(fmt::format(
            "{}: invalid stride ({}), padding ({}), output_padding ({}) or dilation ({}) of the depth; expected a "
            "positive stride and dilation, padding of 0 or more, and output_padding below the stride or the dilation",
            name, stride.d, padding.d, output_padding.d, dilation.d));
    const std::int64_t spread = (depth - 1) * stride.d + 1;
    const std::int64_t out_depth = spread - 2 * padding.d + dilation.d * (taps - 1) + output_padding.d;
    if (out_depth < 1)
        throw InvalidArgument(
            fmt::format("{}: padding {} of the depth leaves nothing of input {}; expected less padding", name,
                        padding.d, x.shape().str()));

    const Tensor images = x.transpose(1, 2).tag_batch(false).reshape({n * depth, x.size(1), x.size(3), x.size(4)});
    Tensor y;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
        const Tensor made = conv_transpose2d(images, weight.select(2, tap), {}, of_planes(stride), of_planes(padding),
                                             of_planes(output_padding), groups, of_planes(dilation));
        const std::int64_t channels = made.size(1), h = made.size(2), w = made.size(3);
        Tensor part = made.reshape({n, depth, channels, h * w}).transpose(1, 2);  // (N, K, D, H' W')
        if (stride.d > 1)                                                         // zeros between the planes
            part = pad(part.unsqueeze(3), {0, 0, 0, stride.d - 1})
                       .reshape({n, channels, depth * stride.d, h * w})
                       .slice(2, 0, spread);
        const std::int64_t first = tap * dilation.d - padding.d;
        part = pad(part, {0, 0, first, out_depth - first - spread}).reshape({n, channels, out_depth, h, w});
        y = y.defined() ? y + part : part;
    }
    if (call[2].defined()) y = y + widened(call[2]).reshape({call[2].size(0), 1, 1, 1});
    return tagged(y.to(call[0].dtype()), call[0].is_batch());
}

Tensor max_pool3d(const Tensor& given, Triple kernel_size, std::optional<Triple> step, Triple padding, bool ceil_mode,
                  Triple dilation) {
    const CheckedArgs call("max_pool3d", {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims("max_pool3d", "input", x, 5, volumes);
    const Triple stride = step.value_or(kernel_size);
    const Tensor images = max_pool2d(planes(x), of_planes(kernel_size), of_planes(stride), of_planes(padding),
                                     ceil_mode, of_planes(dilation));
    return along_depth(images, x, [&](const Tensor& columns) {
        return max_pool2d(columns, {kernel_size.d, 1}, Pair{stride.d, 1}, {padding.d, 0}, ceil_mode, {dilation.d, 1});
    });
}

Tensor avg_pool3d(const Tensor& given, Triple kernel_size, std::optional<Triple> step, Triple padding,
                  bool count_include_pad, bool ceil_mode, std::optional<std::int64_t> divisor_override) {
    const CheckedArgs call("avg_pool3d", {arg::floating("input", given)});
    checks::dims("avg_pool3d", "input", call[0], 5, volumes);
    const Tensor x = tagged(widened(call[0]), call[0].is_batch());
    const Triple stride = step.value_or(kernel_size);
    const std::optional<std::int64_t> sums = divisor_override ? std::optional<std::int64_t>(1) : std::nullopt;
    const Tensor images = avg_pool2d(planes(x), of_planes(kernel_size), of_planes(stride), of_planes(padding),
                                     count_include_pad, ceil_mode, sums);
    const Tensor y = along_depth(images, x, [&](const Tensor& columns) {
        return avg_pool2d(columns, {kernel_size.d, 1}, Pair{stride.d, 1}, {padding.d, 0}, count_include_pad, ceil_mode,
                          divisor_override);
    });
    return tagged(y.to(call[0].dtype()), call[0].is_batch());
}

Tensor adaptive_avg_pool3d(const Tensor& given, Triple output_size) {
    const CheckedArgs call("adaptive_avg_pool3d", {arg::floating("input", given)});
    checks::dims("adaptive_avg_pool3d", "input", call[0], 5, volumes);
    const Tensor x = tagged(widened(call[0]), call[0].is_batch());
    const Tensor images = adaptive_avg_pool2d(planes(x), of_planes(output_size));
    const Tensor y = along_depth(images, x, [&](const Tensor& columns) {
        return adaptive_avg_pool2d(columns, {output_size.d, static_cast<int>(columns.size(3))});
    });
    return tagged(y.to(call[0].dtype()), call[0].is_batch());
}

}  // namespace lockstep
