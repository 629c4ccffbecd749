// Description of a U-Net in a file with its weights: its shape and the pixel values of its masks.
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

namespace CLI {
class App;
}  // namespace CLI

namespace unet {

/// Adds the required flag --model to a command that reads a trained network.
void add_model_flag(CLI::App& app, std::filesystem::path& model);

struct ModelFile {
    Options net;
    /// Values of class 0, 1, ... in mask files; 0, 1, ... if the file has none.
    std::vector<lockstep::MaskValue> mask_values;
    bool knows_mask_values = false;
    std::map<std::uint8_t, std::array<std::uint8_t, 3>> mask_palette;  ///< SegmentationFolder::mask_palette in training
    lockstep::MaskValue ignore_value;                                  ///< value of pixels without a class; empty: none
    std::optional<double> scale;                                       ///< scale of the training images
};

/// Reads only the header of a safetensors or torch.save file. Throws DataError for an invalid file and for one that
/// does not hold a U-Net.
ModelFile describe(const std::filesystem::path& path);

/// RunState::metadata, which `describe` reads back.
std::map<std::string, std::string> metadata_of(const lockstep::SegmentationFolder& images,
                                               const lockstep::MaskValue& ignore_value, double scale);

/// "0,255", "0:0:0,255:0:0": the values of classes, as in --mask-values.
std::string text_of(const std::vector<lockstep::MaskValue>& values);
/// The values in this format; nullopt for other text.
std::optional<std::vector<lockstep::MaskValue>> values_in(const std::string& text);

/// "--classes 2 --width 64 --bilinear": the flags that make such a network.
std::string flags_of(const Options& net);

}  // namespace unet
