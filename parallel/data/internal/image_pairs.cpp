#include "lockstep/parallel/data/internal/image_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <system_error>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

/// Files by their name without the last extension.
using FilesByStem = std::map<std::string, std::vector<std::filesystem::path>>;

FilesByStem files_in(const std::filesystem::path& folder, const char* what) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error))
        throw DataError(fmt::format("{}: no such folder; give the one that holds the {}", folder.string(), what));
    FilesByStem files;
    std::filesystem::directory_iterator entry(folder, error);
    for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
        std::error_code ignored;
        const std::filesystem::path& path = entry->path();
        if (path.filename().native().starts_with('.') || !entry->is_regular_file(ignored)) continue;
        files[path.stem()].push_back(path);
    }
    if (error)
        throw DataError(
            fmt::format("{}: the folder cannot be read: {}; check its permissions", folder.string(), error.message()));
    if (files.empty()) throw DataError(fmt::format("{}: the folder is empty; put the {} there", folder.string(), what));
    for (auto& [stem, paths] : files) std::sort(paths.begin(), paths.end());
    return files;
}

}  // namespace

std::vector<ImagePair> find_image_pairs(const std::filesystem::path& images, const std::filesystem::path& masks,
                                        const std::string& mask_suffix) {
    const FilesByStem image_files = files_in(images, "images");
    const FilesByStem mask_files = files_in(masks, "masks");
    const bool has_suffix = std::any_of(image_files.begin(), image_files.end(), [&](const auto& image) {
        return mask_files.contains(image.first + mask_suffix);
    });
    const std::string suffix = has_suffix ? mask_suffix : "";
    std::vector<ImagePair> pairs;
    for (const auto& [stem, paths] : image_files) {
        if (paths.size() > 1)
            throw DataError(
                fmt::format("{}: {} has the same name before its extension, so they would share a mask; "
                            "rename one, with its mask",
                            paths[1].string(), paths[0].filename().string()));
        const auto mask = mask_files.find(stem + suffix);
        if (mask == mask_files.end())
            throw DataError(fmt::format("{}: there is no mask {}{}.* in {}; put it there or take the image away",
                                        paths[0].string(), stem, has_suffix ? suffix : mask_suffix, masks.string()));
        if (mask->second.size() > 1)
            throw DataError(fmt::format("{}: there are several masks for it in {}: {} and {}; keep one of them",
                                        paths[0].string(), masks.string(), mask->second[0].filename().string(),
                                        mask->second[1].filename().string()));
        pairs.push_back({paths[0], mask->second[0]});
    }
    return pairs;
}

}  // namespace lockstep::internal
