// Conversion of images to network inputs, as in BasicDataset.preprocess of Pytorch-UNet.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/parallel/data/image.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Height and width multiplied by `scale` and rounded down. Throws InvalidArgument unless 0 < scale <= 1, and if no
/// pixel would remain.
struct ScaledSize {
    std::int64_t height, width;
};
ScaledSize scaled_size(std::int64_t height, std::int64_t width, double scale);

/// resize_image to that size.
HostImage scale_image(const HostImage& image, double scale, Resampling resampling);

/// Writes the levels as f32 (channels, height, width), divided by 255. An image that has only the levels 0 and 1 is not
/// divided. `to` must hold one element per level of the image (InvalidArgument otherwise).
void write_channels(const HostImage& image, std::span<float> to);

/// Same as write_channels, as a tensor (channels, height, width) on the host. Colours of a palette are three channels.
Tensor image_tensor(const HostImage& image);

}  // namespace lockstep
