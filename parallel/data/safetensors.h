// The safetensors file format over raw bytes: every field is checked on reading, and files are written atomically.
// Format: https://github.com/huggingface/safetensors (8 bytes header length, JSON header, data; little-endian).
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/safetensors_types.h"

namespace lockstep {

namespace internal {
class InputFile;
}  // namespace internal

/// A safetensors file open for reading. Opening reads and checks only the header; read() may be called from several
/// threads.
class SafetensorsFile {
public:
    /// Throws DataError, naming file and offset, if the file is missing or truncated, or has an invalid header. A
    /// header is invalid if it is longer than 100 MB, repeats a name, or has offsets that do not cover the data exactly
    /// once. Also throws it for a file of torch.save, which PthFile reads.
    explicit SafetensorsFile(const std::filesystem::path& path);
    /// From a file that is already open, for internal formats.
    explicit SafetensorsFile(internal::InputFile&& file);
    ~SafetensorsFile();
    SafetensorsFile(SafetensorsFile&&) noexcept;
    SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

    /// All tensors with supported dtypes, in the order of their data.
    const std::vector<SafetensorsEntry>& entries() const;
    /// The other tensors, by name, with the file's name of their dtype: "F8_E4M3".
    const std::map<std::string, std::string>& unsupported() const;
    /// The strings under __metadata__; empty if the file has none.
    const SafetensorsMetadata& metadata() const;
    /// The tensor of that name among entries(), or null. Valid for the lifetime of this object.
    const SafetensorsEntry* find(std::string_view name) const;
    /// Copies the data of one tensor to host memory. Throws InvalidArgument if the tensor does not exist or `to` has
    /// another size; DataError for an unsupported dtype, if reading fails, or if a bool is neither 0 nor 1.
    void read(std::string_view name, std::span<std::byte> to) const;

private:
    struct Content;
    const Content& content() const;
    std::unique_ptr<const Content> content_;
};

/// Writes a file that PyTorch and the safetensors package can load, under a temporary name, synced and renamed; after
/// an error the old file is unchanged. Equal arguments give equal bytes. Tensors are ordered by element size, larger
/// elements first, and then as the caller passes them. All of them are thus aligned for readers that map the file.
/// Throws InvalidArgument for an empty or repeated name, the name __metadata__, text that is not UTF-8, a negative or
/// overflowing shape, and null data. Also throws it if the directory is not writable, and DataError if writing fails.
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace lockstep
