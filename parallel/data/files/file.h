// Reading with bounds, for the file formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep::internal {

/// One call that reads or writes moves at most 2 GiB on Linux.
constexpr std::size_t largest_transfer = std::size_t{1} << 30;

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

}  // namespace lockstep::internal
