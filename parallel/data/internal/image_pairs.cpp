#include "lockstep/parallel/data/internal/image_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"

namespace lockstep::internal {
namespace {

/// Files by name without the last extension.
using FilesByStem = std::map<std::string, std::vector<std::filesystem::path>>;

FilesByStem files_in(const std::filesystem::path& folder, const char* what) {
    std::error_code error;
    const auto cannot_be_read = [&] {
        return DataError(fmt::format("{}: the folder cannot be read: {}", folder.string(), error.message()));
    };
    if (!std::filesystem::is_directory(folder, error)) {
        if (error == std::errc::permission_denied) throw cannot_be_read();
        throw DataError(fmt::format("{}: no such folder; expected the folder of the {}", folder.string(), what));
    }
    FilesByStem files;
    std::filesystem::directory_iterator entry(folder, error);
    for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error)) {
        const std::filesystem::path& path = entry->path();
        if (path.filename().native().starts_with('.')) continue;
        std::error_code why;
        const auto kind = entry->status(why).type();
        if (kind == std::filesystem::file_type::not_found || kind == std::filesystem::file_type::none) {
            std::error_code none;
            const auto target = std::filesystem::read_symlink(path, none);
            throw DataError(none ? fmt::format("{}: cannot be read: {}", path.string(), why.message())
                                 : fmt::format("{}: the link target {} does not exist; expected a file", path.string(),
                                               target.string()));
        }
        if (kind != std::filesystem::file_type::regular) continue;
        files[path.stem()].push_back(path);
    }
    if (error) throw cannot_be_read();
    if (files.empty()) throw DataError(fmt::format("{}: the folder is empty; expected the {}", folder.string(), what));
    for (auto& [stem, paths] : files) std::sort(paths.begin(), paths.end());
    return files;
}

std::string ascii_of(const std::string& name) {
    std::string ascii;
    for (const char c : name)
        if (static_cast<unsigned char>(c) < 0x80) ascii += c;
    return ascii;
}

/// U+0300 to U+036F
bool has_combining_marks(const std::string& name) {
    for (std::size_t i = 0; i + 1 < name.size(); ++i)
        if (name[i] == '\xcc' || (name[i] == '\xcd' && static_cast<unsigned char>(name[i + 1]) < 0xb0)) return true;
    return false;
}

/// Whether one may be the other with letters and marks as separate characters (Unicode's NFD and NFC).
bool may_look_alike(const std::string& a, const std::string& b) {
    if (has_combining_marks(a) == has_combining_marks(b)) return false;
    const std::string& apart = has_combining_marks(a) ? a : b;
    const std::string letters = ascii_of(apart), fewer = ascii_of(&apart == &a ? b : a);
    if (fewer.size() == (&apart == &a ? b : a).size()) return false;
    std::size_t at = 0;
    for (const char c : letters)
        if (at < fewer.size() && fewer[at] == c) ++at;
    return at == fewer.size() && letters.size() > fewer.size();
}

/// The files that the folder has instead of a mask for `stem`.
std::string found_instead(const std::string& stem, const std::string& suffix, const FilesByStem& masks) {
    for (const auto& [name, paths] : masks)
        if (may_look_alike(name, stem + suffix) || may_look_alike(name, stem))
            return fmt::format(
                "{} looks the same, but one of the names has decomposed accents (Unicode NFD); rename it",
                paths[0].filename().string());
    std::size_t count = 0;
    for (const auto& [name, paths] : masks) count += paths.size();
    return fmt::format("its {} {} such as {}; expected one per image", count,
                       count == 1 ? "file has a name" : "files have names",
                       masks.begin()->second[0].filename().string());
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
            throw DataError(fmt::format("{}: no mask {}{}.*{} in {}: {}", paths[0].string(), stem, mask_suffix,
                                        has_suffix || mask_suffix.empty() ? "" : fmt::format(" or {}.*", stem),
                                        masks.string(), found_instead(stem, mask_suffix, mask_files)));
        if (mask->second.size() > 1)
            throw DataError(fmt::format("{}: several masks in {}: {} and {}; expected one", paths[0].string(),
                                        masks.string(), mask->second[0].filename().string(),
                                        mask->second[1].filename().string()));
        pairs.push_back({paths[0], mask->second[0]});
    }
    return pairs;
}

void for_each_row(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> stop{false};
    std::mutex mutex;
    std::int64_t failed_row = std::numeric_limits<std::int64_t>::max();
    std::exception_ptr failure;
    const auto work = [&]() noexcept {
        while (!stop) {
            const std::int64_t row = next++;
            if (row >= count) return;
            try {
                body(row);
            } catch (...) {
                stop = true;
                const std::scoped_lock lock(mutex);
                if (row < failed_row) {
                    failed_row = row;
                    failure = std::current_exception();
                }
            }
        }
    };
    {
        std::vector<std::jthread> helpers;
        const std::int64_t wanted = std::min<std::int64_t>(threads > 0 ? threads : usable_cores(), count);
        try {
            while (std::ssize(helpers) + 1 < wanted) helpers.emplace_back(work);
        } catch (const std::system_error&) {  // the system refuses more threads: the running ones do the work
        }
        work();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace lockstep::internal
