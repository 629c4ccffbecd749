// A folder of images and a folder of masks, as in Kaggle's Carvana set, for segmentation.
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

/// Value of a mask pixel: one number (grey, or the index of a palette), or the 2 to 4 numbers of grey with alpha, RGB
/// and RGBA.
using MaskValue = std::vector<std::uint8_t>;

/// The class of ignored pixels: the default of NllOptions::ignore_index.
inline constexpr std::int64_t ignored_class = -100;

/// Options of a SegmentationFolder.
struct SegmentationFolderOptions {
    double scale = 1;                         ///< factor for both sides, in (0, 1]
    std::string mask_suffix = "_mask";        ///< masks are NAME_mask.* if one exists, otherwise NAME.*
    std::vector<MaskValue> mask_values = {};  ///< mask values of class 0, 1, ...; empty: all values found, sorted
    /// Palette colours of `mask_values` in the training masks, if these have palettes.
    std::map<std::uint8_t, std::array<std::uint8_t, 3>> mask_palette = {};
    MaskValue ignore_value = {};  ///< value of pixels that belong to no class; they become `ignored_class`
    int classes = 0;              ///< maximum number of values; 0: no limit
    int channels = 0;             ///< required number of image channels; 0: any
    int threads = 0;              ///< number of threads that scan the masks; 0: one per core
};

/// Row i is an image and its classes. The image is the i-th NAME.*, sorted by name, as f32 (C, H, W) in [0, 1], scaled
/// by bicubic interpolation. The class of each pixel, i64 (H, W), is from the mask NAME_mask.* or NAME.*, scaled by
/// nearest neighbour. Files are JPEG, PNG and GIF (image_file.h); files whose name begins with a dot are ignored. The
/// sorted values of masks become classes, as in BasicDataset of Pytorch-UNet, which also scans all masks first. Palette
/// images are converted to RGB; of palette masks the indices are used.
class SegmentationFolder {
public:
    /// Reads all masks and the headers of all images. Throws DataError, naming the file, for:
    /// - a missing or empty folder, a file that cannot be read, a broken link
    /// - an image with no mask or several, two images with the same name
    /// - a mask of another size than its image, with 16 bits per channel or with more than 256 values
    /// - images that differ in size or channels, masks that differ in channels
    /// - mask values that are not among `mask_values` or exceed `classes`
    ///
    /// Palettes are compared by colour: if they differ, or are mixed with grey or RGB masks, colours are read instead
    /// of indices, with a warning. Also warns as warn_of_unused_range, and of images with an orientation tag. Throws
    /// InvalidArgument for a scale that is not in (0, 1] or leaves no pixel.
    SegmentationFolder(const std::filesystem::path& images, const std::filesystem::path& masks,
                       const SegmentationFolderOptions& options = {});

    std::int64_t size() const;
    /// Throws InvalidArgument for rows that do not exist; DataError if a file is damaged or was changed.
    std::tuple<Tensor, Tensor> get(std::int64_t row) const;
    std::array<RowField, 2> fields() const;
    void read(std::span<const std::int64_t> rows, std::span<std::byte* const> to) const;

    int channels() const;
    /// options.classes if set, otherwise the number of mask values.
    int classes() const;
    /// Mask values of class 0, 1, ...
    const std::vector<MaskValue>& mask_values() const;
    /// Palette colours of the mask values; empty if the values are not indices.
    const std::map<std::uint8_t, std::array<std::uint8_t, 3>>& mask_palette() const;
    const std::filesystem::path& image_file(std::int64_t row) const;
    const std::filesystem::path& mask_file(std::int64_t row) const;

private:
    struct Content;
    const Content& content() const;
    std::shared_ptr<const Content> content_;  // copies share it
};

}  // namespace lockstep
