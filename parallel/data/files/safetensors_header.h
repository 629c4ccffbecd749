// The header of a safetensors file: 8 bytes of length, then JSON.
#pragma once

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

namespace lockstep::internal {

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;  ///< in the order of their data
    std::unordered_map<std::string_view, const SafetensorsEntry*> by_name;
    std::map<std::string, std::string> unsupported;
    SafetensorsMetadata metadata;
};

/// Reads and checks it, in time that grows with its length. Throws DataError as SafetensorsFile says.
SafetensorsHeader read_safetensors_header(const InputFile& file);

/// Content to write for tensors: the header, then the data in this order.
struct SafetensorsLayout {
    std::string header;
    std::vector<const SafetensorsTensor*> order;
    std::vector<std::uint64_t> sizes;  ///< sizes of the data, by order
};

/// `path` is for messages. Throws InvalidArgument as write_safetensors says.
SafetensorsLayout lay_out_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                                      const SafetensorsMetadata& metadata);

/// All of it in its order, in pieces.
void put_out(const SafetensorsLayout& layout, const std::function<void(std::span<const std::byte>)>& put);

}  // namespace lockstep::internal
