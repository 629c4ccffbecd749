// Masks as pictures.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/parallel/data/image.h"
#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/runtime/tensor.h"

namespace unet {

/// The class of every pixel, row-major.
struct ClassMap {
    std::int64_t height = 0, width = 0;
    std::vector<std::uint8_t> classes;
};

/// logits (1, C, H, W): the class with the largest logit at each position; for a single class, whether its probability
/// exceeds `threshold`.
ClassMap classes_of(const lockstep::Tensor& logits, double threshold = 0.5);

/// Colours of class 0, 1, ...: black and white for two classes, otherwise those of PASCAL VOC.
std::array<std::uint8_t, 3> colour_of(std::size_t class_number, std::size_t classes);

/// A mask file of the kind that the network was trained on: pixels hold `mask_values`, those of one channel as indices
/// of a palette, with the colours of `palette` or, if it lacks a class, default colours.
lockstep::HostImage mask_image(const ClassMap& map, const std::vector<lockstep::MaskValue>& mask_values,
                               const std::map<std::uint8_t, std::array<std::uint8_t, 3>>& palette = {});

/// `image` as RGB, blended half and half with the colour of every class except the first.
lockstep::HostImage overlay(const lockstep::HostImage& image, const ClassMap& map);

/// Pictures of one size in a grid of `columns` columns, with white lines between them.
lockstep::HostImage sheet(const std::vector<lockstep::HostImage>& pictures, std::size_t columns);

}  // namespace unet
