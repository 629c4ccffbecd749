// Symbolic links that may be followed when a file is written.
#pragma once

#include <filesystem>

namespace lockstep::internal {

/// The directory of the name.
std::filesystem::path directory_of(const std::filesystem::path& path);

/// Maximum number of links in a path: the kernel's.
inline constexpr int max_links = 40;

/// Throws InvalidArgument if the path leads through a symbolic link of another user in a directory that every user may
/// write to (/tmp): its owner would choose the file that is written. Links in the targets of links count as well.
void require_trusted_links(const std::filesystem::path& path);

}  // namespace lockstep::internal
