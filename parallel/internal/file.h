// Reading with bounds and writing at once, for the file formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep::internal {

/// A regular file opened for reading. Throws DataError when it is missing or something else.
class InputFile {
public:
    explicit InputFile(const std::filesystem::path& path);
    ~InputFile();
    InputFile(InputFile&& other) noexcept;
    InputFile& operator=(InputFile&&) = delete;

    const std::string& name() const { return name_; }
    std::uint64_t size() const { return size_; }
    /// Fills `to` from byte `offset` on, from any thread. DataError when the file ends before that.
    void read_at(std::uint64_t offset, std::span<std::byte> to) const;

private:
    std::string name_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

/// A file that takes the place of `path` at commit(), and not before. Without a commit nothing remains of it.
class AtomicFile {
public:
    /// InvalidArgument when the directory is missing or cannot be written, or when something else than a file is there.
    explicit AtomicFile(const std::filesystem::path& path);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    /// DataError when the disk is full or fails.
    void write(std::span<const std::byte> bytes);
    /// Syncs the file, names it and syncs the directory.
    void commit();

private:
    [[noreturn]] void fail(const char* action) const;
    bool try_without_name();
    /// A name beside the old file, because only a rename within one file system is atomic.
    std::string next_name() const;
    void give_name();

    std::filesystem::path path_;
    std::string temporary_;  ///< empty while the file has no name
    int descriptor_ = -1;
    std::uint64_t written_ = 0;
};

}  // namespace lockstep::internal
