// Weights in several safetensors files, as Hugging Face's libraries write large models.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/safetensors.h"

namespace lockstep::internal {

/// The files that "model.safetensors.index.json" names, as one file.
class ShardedWeights {
public:
    /// By its name and first byte.
    static bool is_index(const InputFile& file);
    /// Throws DataError if the index is not {"weight_map": {tensor: file}}, a name of a file is more than a name, a
    /// file is missing or damaged, or has other tensors than the index says.
    explicit ShardedWeights(const InputFile& index);

    const std::vector<SafetensorsEntry>& entries() const { return entries_; }
    const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
    const SafetensorsEntry* find(std::string_view name) const;
    void read(std::string_view name, std::span<std::byte> to) const;

private:
    std::map<std::string, SafetensorsFile> shards_;  ///< by the name of the file
    std::map<std::string, const SafetensorsFile*, std::less<>> shard_of_;
    std::vector<SafetensorsEntry> entries_;
    std::map<std::string, std::string> unsupported_;
};

}  // namespace lockstep::internal
