// What a file with the weights of a U-Net says of it: its shape, and what the pixels of its masks are called.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/samples/apps/unet/net.h"

namespace unet {

struct ModelFile {
    Options net;
    /// Values of class 0, 1, ... in mask files; 0, 1, ... where the file does not say.
    std::vector<lockstep::MaskValue> mask_values;
    bool knows_mask_values = false;
    std::map<std::uint8_t, std::array<std::uint8_t, 3>> mask_palette;  ///< SegmentationFolder::mask_palette in training
    lockstep::MaskValue ignore_value;                                  ///< of pixels without a class; empty: none
    std::optional<double> scale;                                       ///< of the images that it was trained on
};

/// Reads the header alone, of safetensors or of torch.save. Throws DataError as these do, and for a file that holds
/// something else than a U-Net.
ModelFile describe(const std::filesystem::path& path);

/// What `describe` finds again: for RunState::metadata.
std::map<std::string, std::string> metadata_of(const lockstep::SegmentationFolder& images,
                                               const lockstep::MaskValue& ignore_value, double scale);

/// "0,255", "0:0:0,255:0:0": the values of classes, as --mask-values takes them.
std::string text_of(const std::vector<lockstep::MaskValue>& values);
/// The values in such a text; nothing for any other text.
std::optional<std::vector<lockstep::MaskValue>> values_in(const std::string& text);

/// "--classes 2 --width 64 --bilinear": the flags that make such a network.
std::string flags_of(const Options& net);

}  // namespace unet
