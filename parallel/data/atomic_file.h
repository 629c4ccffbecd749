// Atomic replacement of files: a reader finds the complete old or the complete new file, however the writer ends.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// A file that replaces `path` at commit(). Without a commit it is removed. Symbolic links are followed: the target is
/// replaced, and the link is unchanged. The new file has the mode and, if permitted, the owner of the old one.
/// Temporary files that killed writers of the same file have left are removed.
class AtomicFile {
public:
    /// `like`: file whose mode and owner are used if `path` does not exist; may be missing or empty. Throws
    /// InvalidArgument if the directory is missing or not writable, or if `path` exists and is not a regular file.
    explicit AtomicFile(const std::filesystem::path& path, const std::filesystem::path& like = {});
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    /// Throws DataError if the disk is full or fails, or if the file exceeds this process's limit (`ulimit -f`). The
    /// signal of that limit does not end a process that has no handler for it.
    void write(std::span<const std::byte> bytes);
    /// Overwrites earlier content from `offset` on.
    void overwrite(std::uint64_t offset, std::span<const std::byte> bytes);
    /// Syncs the file, renames it and syncs the directory.
    void commit();

private:
    [[noreturn]] void fail(const char* action) const;
    bool try_unnamed(mode_t mode);
    void create_named(mode_t mode);
    void copy_mode_of(const struct stat& old) const;
    /// A name in the directory of the old file, because only a rename within one file system is atomic.
    std::string next_name() const;
    void link_name();

    std::string given_;           ///< the name as passed by the caller
    std::filesystem::path path_;  ///< the resolved path
    std::string temporary_;       ///< empty while the file has no name
    int descriptor_ = -1;
    std::uint64_t written_ = 0;
};

/// Whether two names refer to the same file, after normalization and following links; the file need not exist. Throws
/// InvalidArgument for cyclic links.
bool same_file(const std::filesystem::path& one, const std::filesystem::path& other);

/// Creates the directory and those above it; an empty path is the current one. Throws InvalidArgument if that fails, or
/// if the path leads through a symbolic link of another user in a directory that all users share.
void make_directories(const std::filesystem::path& directory);

/// Removes the temporary files that killed writers of `path` have left: "PATH.PROCESS-NUMBER.tmp".
void remove_stale_files(const std::filesystem::path& path);

/// Makes earlier renames in the directory of `path` persistent across a power failure. Errors are ignored: the files
/// themselves are complete, and some file systems cannot sync directories.
void sync_parent_directory(const std::filesystem::path& path) noexcept;

}  // namespace lockstep
