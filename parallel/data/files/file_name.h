// Names of files: what they mean, and what may be written there.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <tuple>

namespace lockstep::internal {

/// "No such file or directory": what errno says.
std::string reason();

/// The directory that the name lies in.
std::filesystem::path directory_of(const std::filesystem::path& path);

/// What `path` means once symbolic links are followed, whether there is a file or not; only the last part counts.
/// Throws InvalidArgument for links that lead round in a circle, and for those of other users in a directory that all
/// may write to (/tmp).
std::filesystem::path followed(const std::filesystem::path& path);

/// Throws InvalidArgument if a part of the path is a symbolic link of another user in a directory that all may write
/// to.
void require_trusted_links(const std::filesystem::path& path);

/// Throws InvalidArgument unless a file may take the place of what is at `path`: nothing, or a regular file.
void require_replaceable(const std::filesystem::path& path);

/// The file that a name means, whatever its spelling: device and number of the file, or of the directory with the name
/// in it where there is none yet.
using FileIdentity = std::tuple<dev_t, ino_t, std::string>;
FileIdentity identity_of(const std::filesystem::path& path);

}  // namespace lockstep::internal
