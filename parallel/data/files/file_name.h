// Names of files: what they mean, and what may be written there.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <tuple>

namespace lockstep::internal {

/// "No such file or directory": what errno says.
std::string reason();

/// The directory of the name.
std::filesystem::path directory_of(const std::filesystem::path& path);

/// The path after following symbolic links, whether or not the file exists; only the last component is followed. Throws
/// InvalidArgument for cyclic links, and for those of other users in a directory that all may write to (/tmp).
std::filesystem::path followed(const std::filesystem::path& path);

/// Throws InvalidArgument if a part of the path is a symbolic link of another user in a directory that all may write
/// to.
void require_trusted_links(const std::filesystem::path& path);

/// Throws InvalidArgument unless a file may take the place of what is at `path`: nothing, or a regular file.
void require_replaceable(const std::filesystem::path& path);

/// Identity of the file that a name refers to, however it is spelled: device and number of the file, or of the
/// directory plus the name if the file does not exist.
using FileIdentity = std::tuple<dev_t, ino_t, std::string>;
FileIdentity identity_of(const std::filesystem::path& path);

}  // namespace lockstep::internal
