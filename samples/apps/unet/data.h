// The images and masks of a run, and their split for validation.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/segmentation_folder.h"
#include "lockstep/parallel/data/subset.h"
#include "lockstep/parallel/data/transforms.h"

namespace CLI {
class App;
}  // namespace CLI

namespace unet {

/// Flips image and mask together, in half of the rows, if enabled.
struct Augmentation {
    bool flip = false;
    template <class Row>
    Row operator()(Row row, lockstep::RowContext& context) const {
        return flip ? lockstep::RandomHorizontalFlip(0.5)(std::move(row), context) : row;
    }
};

using Images = lockstep::Subset<lockstep::SegmentationFolder>;
using TrainingImages = lockstep::Transformed<Images, Augmentation>;

struct DataOptions {
    std::filesystem::path directory;  ///< directory with imgs and masks
    double scale = 0.5;
    int classes = 2;                                    ///< classes of the network; 1: binary mask
    std::optional<int> channels = {};                   ///< channels of the network's images; none: any
    std::vector<lockstep::MaskValue> mask_values = {};  ///< values of the classes; empty: as found
    std::map<std::uint8_t, std::array<std::uint8_t, 3>> mask_palette = {};
    lockstep::MaskValue ignore_value = {};  ///< value of pixels without a class; empty: none
};

/// --mask-values and --ignore-value, if given.
struct MaskFlags {
    std::string mask_values, ignore_value;

    void add_to(CLI::App& app);
    std::vector<lockstep::MaskValue> values() const;
    lockstep::MaskValue ignored() const;
};

/// Throws as SegmentationFolder does, and UsageError for images that do not fit the network.
lockstep::SegmentationFolder open_images(const DataOptions& options);

/// Number of images, and a digest of the names, sizes and contents of all files: a resumed run must have the same.
/// Reads at most 64 KiB per file, in evenly spaced parts: an image whose bytes differ nowhere else keeps the digest.
std::string describe(const lockstep::SegmentationFolder& images);

/// Throws UsageError for scaled images that are too small for the network, which halves them four times.
void require_room(const std::string& what, double scale, std::int64_t height, std::int64_t width);

/// The rows to train on and those to validate on, of which there are floor(size * percent / 100): the split of the
/// PyTorch program with its seed 0. Throws UsageError for a share that leaves one part empty, unless percent is 0.
struct Split {
    Images training;
    std::optional<Images> validation;
};
Split split(const lockstep::SegmentationFolder& images, double percent);

}  // namespace unet
