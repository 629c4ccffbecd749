// What a file with the weights of a U-Net says of it: its shape, and what the pixels of its masks are called.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/samples/unet/net.h"

namespace unet {

struct ModelFile {
    Options net;
    /// Values of class 0, 1, ... in mask files; 0, 1, ... where the file does not say.
    std::vector<lockstep::MaskValue> mask_values;
    bool knows_mask_values = false;
    std::optional<double> scale;  ///< of the images that it was trained on
};

/// Reads the header alone, of safetensors or of torch.save. Throws DataError as these do, and for a file that holds
/// something else than a U-Net.
ModelFile describe(const std::filesystem::path& path);

/// What `describe` finds again: for RunState::metadata.
std::map<std::string, std::string> metadata_of(const std::vector<lockstep::MaskValue>& mask_values, double scale);

/// "--classes 2 --width 64 --bilinear": the flags that make such a network.
std::string flags_of(const Options& net);

}  // namespace unet
