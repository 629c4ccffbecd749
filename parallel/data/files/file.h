// Files and their names: how they are opened, and how messages quote them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "lockstep/runtime/internal/trusted_links.h"

namespace lockstep::internal {

// File names: what they refer to, and whether it may be written.

/// "No such file or directory": the text of errno.
std::string reason();

/// The path after following symbolic links, whether or not the file exists; only the last component is followed. Throws
/// InvalidArgument for cyclic links, and for other users' links in a directory that every user may write to (/tmp).
std::filesystem::path followed(const std::filesystem::path& path);

/// Throws InvalidArgument unless a file may replace what exists at `path`: nothing, or a regular file.
void require_replaceable(const std::filesystem::path& path);

/// Identity of the file that a name refers to, however it is spelled: device and inode number of the file, or of the
/// directory plus the name if the file does not exist.
using FileIdentity = std::tuple<dev_t, ino_t, std::string>;
FileIdentity identity_of(const std::filesystem::path& path);

// Quoting of names from a file in messages.

/// A name from a file, escaped for a message of one line.
inline std::string quote(std::string_view text) {
    constexpr std::size_t longest = 200;
    std::string result = "'";
    for (const char c : text.substr(0, longest)) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    return result + (text.size() > longest ? "...'" : "'");
}

/// Linux moves at most 2 GiB in one read or write.
constexpr std::size_t largest_transfer = std::size_t{1} << 30;

/// A regular file opened for reading, or its content in memory.
class InputFile {
public:
    /// Throws DataError if the file is missing or not a regular file.
    explicit InputFile(const std::filesystem::path& path);
    /// `bytes` must outlive this; `name` is for messages.
    InputFile(std::string name, std::span<const std::byte> bytes);
    ~InputFile();
    InputFile(InputFile&& other) noexcept;
    InputFile& operator=(InputFile&&) = delete;

    const std::string& name() const { return name_; }
    std::uint64_t size() const { return size_; }
    /// Fills `to` from byte `offset` on; may be called from any thread. Throws DataError if the file ends before that.
    void read_at(std::uint64_t offset, std::span<std::byte> to) const;

private:
    std::string name_;
    int descriptor_ = -1;  // -1: in memory
    const std::byte* memory_ = nullptr;
    std::uint64_t size_ = 0;
};

}  // namespace lockstep::internal
