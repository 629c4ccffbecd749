// Matching of images and masks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::internal {

struct ImagePair {
    std::filesystem::path image, mask;
};

/// All images with their masks, sorted by name. Throws DataError as SegmentationFolder.
std::vector<ImagePair> find_image_pairs(const std::filesystem::path& images, const std::filesystem::path& masks,
                                        const std::string& mask_suffix);

}  // namespace lockstep::internal
