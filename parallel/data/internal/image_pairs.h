// Pairs of images and masks in two folders, and work on all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::internal {

struct ImagePair {
    std::filesystem::path image, mask;
};

/// All images with their masks, sorted by name. Throws DataError as SegmentationFolder.
std::vector<ImagePair> find_image_pairs(const std::filesystem::path& images, const std::filesystem::path& masks,
                                        const std::string& mask_suffix);

// Parallel work on many rows while the cores are otherwise idle: before training, and in data generators.

/// Calls body(row) for all rows from 0 to count - 1 on `threads` threads (0: one per core), in any order. After an
/// exception no further row is begun; the exception of the lowest row is thrown, the same in every run.
void for_each_row(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

}  // namespace lockstep::internal
