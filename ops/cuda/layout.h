// Preferred layouts of the CUDA kernels: dense, and channels-last for images.
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// Strides of (N, C, H, W) stored as (N, H, W, C).
Shape channels_last_strides(const Shape& shape);
bool is_channels_last(const TensorMeta& meta);
/// Every element of its range is used once, in any order of dimensions.
bool is_dense(const TensorMeta& meta);
/// Gives `fresh` the arrangement of `model` (same shape) if that is dense, otherwise row-major.
void set_layout_like(TensorMeta& fresh, const TensorMeta& model);
void set_channels_last(TensorMeta& meta);

/// (N, C, H, W) images in one of the two dense layouts.
struct Images {
    std::int64_t n = 0, c = 0, h = 0, w = 0;
    bool channels_last = false;
};
Images images_of(const TensorMeta& meta);
/// Asks for input `i` in one of the two dense layouts; returns the one that it will have.
Images want_images(KernelRequest& request, std::size_t i);
/// Asks for input `i` in channels-last order.
void want_channels_last(KernelRequest& request, std::size_t i);
/// Asks for input `i` in the layout of input `model`, which is dense.
void want_like(KernelRequest& request, std::size_t i, const TensorMeta& model);

}  // namespace lockstep::cuda
