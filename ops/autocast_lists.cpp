#include "lockstep/ops/internal/autocast_lists.h"

#include <algorithm>

#include "lockstep/runtime/autocast.h"

namespace lockstep {

namespace {

constexpr std::string_view in_16_bits[] = {"conv2d", "conv_transpose2d", "linear", "matmul"};

constexpr std::string_view in_f32[] = {
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "dice_loss",
    "dice_score",
    "exp",
    "layer_norm",
    "log",
    "log_softmax",
    "mean",
    "mean_loss",
    "mse_loss",
    "nll_loss",
    "softmax",
    "square",
    "sum",
    "sum_loss",
    "sum_over_shards",
};

constexpr std::string_view in_the_widest[] = {"add", "cat", "div", "mul", "sub"};

template <std::size_t n>
bool has(const std::string_view (&list)[n], std::string_view function) {
    return std::find(std::begin(list), std::end(list), function) != std::end(list);
}

/// f32 where tensors of it, f16 and bf16 meet; f64 and integers are left to be refused.
std::optional<DType> widest(const std::vector<Tensor>& tensors) {
    std::optional<DType> all;
    for (const Tensor& tensor : tensors) {
        if (!tensor.defined() || !autocast_converts(tensor.dtype())) continue;
        all = all && *all != tensor.dtype() ? DType::f32 : tensor.dtype();
    }
    return all;
}

}  // namespace

std::optional<DType> autocast_dtype(std::string_view function, const std::vector<Tensor>& tensors) {
    const std::optional<DType> narrow = Autocast::dtype();
    if (!narrow) return std::nullopt;
    if (has(in_16_bits, function)) return narrow;
    if (has(in_f32, function)) return DType::f32;
    if (has(in_the_widest, function)) return widest(tensors);
    return std::nullopt;
}

}  // namespace lockstep
