// Convolution and pooling of sequences, as images of height 1.
#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"

namespace lockstep {

namespace {

Tensor as_images(const char* name, const Tensor& x) {
    checks::dims(name, "input", x, 3, "(N, C, L)");
    return tagged(x.unsqueeze(2), x.is_batch());
}

Pair along(std::optional<int> stride, int kernel_size) { return {1, stride.value_or(kernel_size)}; }

}  // namespace

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias, int stride, int padding,
                        int output_padding, std::int64_t groups, int dilation) {
    constexpr const char* name = "conv_transpose1d";
    const CheckedArgs call(name,
                           {arg::floating("input", x), arg::floating("weight", weight), arg::optional("bias", bias)});
    checks::dims(name, "weight", call[1], 3, "(C, K / groups, k)");
    return conv_transpose2d(as_images(name, call[0]), call[1].unsqueeze(2), call[2], {1, stride}, {0, padding},
                            {0, output_padding}, groups, {1, dilation})
        .squeeze(2);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, int stride, int padding, int dilation,
              std::int64_t groups) {
    const CheckedArgs call("conv1d",
                           {arg::floating("input", x), arg::floating("weight", weight), arg::optional("bias", bias)});
    checks::dims("conv1d", "weight", call[1], 3, "(K, C / groups, k)");
    const Tensor images = as_images("conv1d", call[0]);
    return conv2d(images, call[1].unsqueeze(2), call[2], {1, stride}, {0, padding}, {1, dilation}, groups).squeeze(2);
}

Tensor max_pool1d(const Tensor& x, int kernel_size, std::optional<int> stride, int padding, bool ceil_mode,
                  int dilation) {
    const CheckedArgs call("max_pool1d", {arg::floating("input", x)});
    const Tensor images = as_images("max_pool1d", call[0]);
    return max_pool2d(images, {1, kernel_size}, along(stride, kernel_size), {0, padding}, ceil_mode, {1, dilation})
        .squeeze(2);
}

Tensor avg_pool1d(const Tensor& x, int kernel_size, std::optional<int> stride, int padding, bool count_include_pad,
                  bool ceil_mode) {
    const CheckedArgs call("avg_pool1d", {arg::floating("input", x)});
    const Tensor images = as_images("avg_pool1d", call[0]);
    return avg_pool2d(images, {1, kernel_size}, along(stride, kernel_size), {0, padding}, count_include_pad, ceil_mode)
        .squeeze(2);
}

Tensor adaptive_avg_pool1d(const Tensor& x, int output_size) {
    const CheckedArgs call("adaptive_avg_pool1d", {arg::floating("input", x)});
    return adaptive_avg_pool2d(as_images("adaptive_avg_pool1d", call[0]), {1, output_size}).squeeze(2);
}

Tensor adaptive_max_pool1d(const Tensor& x, int output_size) {
    const CheckedArgs call("adaptive_max_pool1d", {arg::floating("input", x)});
    return adaptive_max_pool2d(as_images("adaptive_max_pool1d", call[0]), {1, output_size}).squeeze(2);
}

}  // namespace lockstep
