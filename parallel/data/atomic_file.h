// Writing a file at once: a reader finds the old one or the new one, whole, however the writer ends.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep {

/// A file that takes the place of `path` at commit(), and not before. Without a commit nothing remains of it. Symbolic
/// links are followed: what they name is replaced, and they stay. The new file has mode, and where possible owner, of
/// the old one. What writers that were killed have left of the same file is removed.
class AtomicFile {
public:
    /// `like`: whose mode and owner the file takes where none is at `path` yet; may be missing or empty. Throws
    /// InvalidArgument when the directory is missing or cannot be written, or when something else than a file is there.
    explicit AtomicFile(const std::filesystem::path& path, const std::filesystem::path& like = {});
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    /// DataError when the disk is full or fails, or the file grows over this process's limit (`ulimit -f`), whose
    /// signal does not end a process that has no handler for it.
    void write(std::span<const std::byte> bytes);
    /// Writes over what was written from `offset` on.
    void overwrite(std::uint64_t offset, std::span<const std::byte> bytes);
    /// Syncs the file, names it and syncs the directory.
    void commit();

private:
    [[noreturn]] void fail(const char* action) const;
    bool try_without_name(mode_t mode);
    void make_with_name(mode_t mode);
    void take_mode_of(const struct stat& old) const;
    /// A name beside the old file, because only a rename within one file system is atomic.
    std::string next_name() const;
    void give_name();

    std::string given_;           ///< the name as the caller has it
    std::filesystem::path path_;  ///< what it means
    std::string temporary_;       ///< empty while the file has no name
    int descriptor_ = -1;
    std::uint64_t written_ = 0;
};

/// Whether two names mean one file, whatever their spelling, links followed; it need not be there yet. Throws
/// InvalidArgument for links that lead round in a circle.
bool same_file(const std::filesystem::path& one, const std::filesystem::path& other);

/// Removes what writers of `path` that were killed have left: "PATH.PROCESS-NUMBER.tmp".
void remove_leftovers_of(const std::filesystem::path& path);

/// Makes that names given in the directory of `path` so far outlive a power failure. The files themselves are complete,
/// so file systems that cannot sync directories are no reason to fail.
void sync_directory_of(const std::filesystem::path& path) noexcept;

}  // namespace lockstep
