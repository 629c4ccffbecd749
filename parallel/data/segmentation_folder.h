// A folder of images and a folder of masks, as Kaggle's Carvana set has them, for training a network to segment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/parallel/data/dataset.h"

namespace lockstep {

/// What a pixel of a mask file holds: one number (grey, or the index of a palette), or the 2 to 4 of grey with alpha,
/// RGB and RGBA.
using MaskValue = std::vector<std::uint8_t>;

/// The class of pixels that are ignored: NllOptions::ignore_index unless it is set.
inline constexpr std::int64_t ignored_class = -100;

struct SegmentationFolderOptions {
    double scale = 1;                         ///< of both sides, above 0 and not above 1
    std::string mask_suffix = "_mask";        ///< where no mask is called NAME_mask.*, they are called NAME.*
    std::vector<MaskValue> mask_values = {};  ///< of class 0, 1, ...; empty: all that there are, sorted
    /// The colours of `mask_values` in the palettes of the masks of training, where they had some.
    std::map<std::uint8_t, std::array<std::uint8_t, 3>> mask_palette = {};
    MaskValue ignore_value = {};  ///< of pixels that belong to no class: they get `ignored_class`
    int classes = 0;              ///< more values than that are refused; 0: as many as there are
    int channels = 0;             ///< images must have so many; 0: as many as they have
    int threads = 0;              ///< that look through the masks at first; 0: one per core
};

/// Row i is the image NAME.* that comes i-th by name in the folder of images, as f32 (C, H, W) in [0, 1], scaled by
/// bicubic interpolation, and the class of each of its pixels, i64 (H, W), from its mask NAME_mask.* or NAME.*, scaled
/// by picking pixels. Files are JPEG, PNG and GIF (image_file.h); those whose name begins with a dot do not count. The
/// values of masks become classes in their order, as in BasicDataset of the U-Net program for PyTorch: there, too, all
/// masks are looked through at first. Palettes of images become RGB, those of masks are left aside for their indices.
class SegmentationFolder {
public:
    /// Reads all masks and the headers of all images. Throws DataError, naming the file, when a folder is missing or
    /// empty, an image has no mask or several, a name belongs to two images, a file cannot be read, a mask has another
    /// size than its image, 16 bits per channel or more than 256 values, images differ in size or channels, masks
    /// differ in channels, and for values that are not among `mask_values` or go beyond `classes`; also for a broken
    /// link. Palettes are compared by colour: where they differ, or are mixed with grey or RGB masks, colours are
    /// read instead of indices. Warns of that, of images with 16 bits per channel that use less than a tenth of their
    /// range, and of images with an orientation tag. Throws InvalidArgument for a scale that is not in (0, 1] or leaves
    /// no pixel.
    SegmentationFolder(const std::filesystem::path& images, const std::filesystem::path& masks,
                       const SegmentationFolderOptions& options = {});

    std::int64_t size() const;
    /// Throws InvalidArgument for rows that are not there; DataError when a file turns out to be damaged or was
    /// changed.
    std::tuple<Tensor, Tensor> get(std::int64_t row) const;
    std::array<RowField, 2> fields() const;
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const;

    int channels() const;
    /// options.classes where given, else as many as there are values.
    int classes() const;
    /// Of class 0, 1, ...
    const std::vector<MaskValue>& mask_values() const;
    /// The colours of indices in the palettes of the masks; empty where the values are no indices.
    const std::map<std::uint8_t, std::array<std::uint8_t, 3>>& mask_palette() const;
    const std::filesystem::path& image_file(std::int64_t row) const;
    const std::filesystem::path& mask_file(std::int64_t row) const;

private:
    struct Content;
    std::shared_ptr<const Content> content_;  // copies share it
};

}  // namespace lockstep
