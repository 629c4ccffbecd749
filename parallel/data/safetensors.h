// The safetensors file format over raw bytes: every field checked on reading, written at once or not at all.
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

/// A safetensors file open for reading. Opening reads and checks the header, and nothing else; read() may be called
/// from several threads.
class SafetensorsFile {
public:
    /// Throws DataError, naming file and offset, when the file is missing or truncated, its header is longer than
    /// 100 MB or not the JSON it should be, a name is there twice, or sizes and offsets do not cover the data exactly
    /// once; and for a file of torch.save, which PthFile reads.
    explicit SafetensorsFile(const std::filesystem::path& path);
    /// One that is open already, for the library's own formats.
    explicit SafetensorsFile(internal::InputFile&& file);
    ~SafetensorsFile();
    SafetensorsFile(SafetensorsFile&&) noexcept;
    SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

    /// All tensors of dtypes that Lockstep has, in the order of their data.
    const std::vector<SafetensorsEntry>& entries() const;
    /// The other ones, by name, with what the file calls their dtype: "F8_E4M3".
    const std::map<std::string, std::string>& unsupported() const;
    /// The strings under __metadata__; empty where there are none.
    const SafetensorsMetadata& metadata() const;
    /// The tensor of that name among entries(), or null. Lives as long as this object.
    const SafetensorsEntry* find(std::string_view name) const;
    /// Copies the data of one tensor to host memory. Throws InvalidArgument when there is no such tensor or `to` is not
    /// of its size, DataError for one of a dtype that Lockstep has not, when reading fails, or a bool is neither 0
    /// nor 1.
    void read(std::string_view name, std::span<std::byte> to) const;

private:
    struct Content;
    std::unique_ptr<const Content> content_;
};

/// Writes a file that PyTorch and the safetensors package load, under a temporary name, synced and renamed: after an
/// error the old file is as it was. Equal arguments give equal bytes. Tensors lie in the caller's order within each
/// element size, larger elements first, so that all of them are aligned for readers that map the file.
/// Throws InvalidArgument on an empty or repeated name, one called __metadata__, text that is not UTF-8, a negative or
/// overflowing shape, null data, and where the directory cannot be written; DataError when writing fails.
void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace lockstep
