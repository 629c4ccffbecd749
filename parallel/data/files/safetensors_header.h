// The header of a safetensors file: 8 bytes of length, then JSON.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/safetensors_types.h"
#include "lockstep/runtime/dtype.h"

// Format constants for readers and writers of safetensors headers.

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace lockstep::internal::safetensors_format {

inline constexpr std::uint64_t prefix_bytes = 8;
inline constexpr std::uint64_t longest_header = 100'000'000;  // the limit of the reference implementation
inline constexpr const char* metadata_key = "__metadata__";

struct TypeName {
    DType dtype;
    std::string_view name;
};
inline constexpr std::array<TypeName, 8> type_names = {{{DType::f32, "F32"},
                                                        {DType::f64, "F64"},
                                                        {DType::f16, "F16"},
                                                        {DType::bf16, "BF16"},
                                                        {DType::i32, "I32"},
                                                        {DType::i64, "I64"},
                                                        {DType::u8, "U8"},
                                                        {DType::boolean, "BOOL"}}};

}  // namespace lockstep::internal::safetensors_format

namespace lockstep::internal {

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;  ///< in the order of their data
    std::unordered_map<std::string_view, const SafetensorsEntry*> by_name;
    std::map<std::string, std::string> unsupported;
    SafetensorsMetadata metadata;
};

/// Reads and checks the header, in time proportional to its length. Throws DataError as SafetensorsFile.
SafetensorsHeader read_safetensors_header(const InputFile& file);

/// Content of a file to write: the header, then the data of the tensors in this order.
struct SafetensorsLayout {
    std::string header;
    std::vector<const SafetensorsTensor*> order;
    std::vector<std::uint64_t> sizes;  ///< sizes of the data, in that order
};

/// `path` is for messages. Throws InvalidArgument as write_safetensors.
SafetensorsLayout lay_out_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                                      const SafetensorsMetadata& metadata);

/// Writes all of it in order, in pieces.
void write_tensors(const SafetensorsLayout& layout, const std::function<void(std::span<const std::byte>)>& put);

}  // namespace lockstep::internal
