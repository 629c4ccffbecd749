#include "lockstep/parallel/checkpoint/sharded_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/in_quotes.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

constexpr std::uint64_t longest_index = 100'000'000;

/// Files by tensor.
std::map<std::string, std::string> weight_map(const InputFile& index) {
    const auto refuse = [&](const std::string& what) {
        throw DataError(
            fmt::format("{}: offset 0: {}; expected {{\"weight_map\": {{tensor: file}}}}", index.name(), what));
    };
    if (index.size() > longest_index) refuse(fmt::format("the index has {} bytes", index.size()));
    std::string text(static_cast<std::size_t>(index.size()), '\0');
    index.read_at(0, std::as_writable_bytes(std::span(text)));
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) refuse("the index is not a JSON object");
    const auto map = json.find("weight_map");
    if (map == json.end() || !map->is_object()) refuse("the index has no weight_map");
    std::map<std::string, std::string> files;
    for (const auto& [tensor, file] : map->items()) {
        if (!file.is_string()) refuse("the file of tensor " + in_quotes(tensor) + " is not a string");
        const auto& name = file.get_ref<const std::string&>();
        if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
            name.find('\0') != std::string::npos)
            refuse("the file " + in_quotes(name) + " of tensor " + in_quotes(tensor) +
                   " is not a name in the directory of the index");
        files.emplace(tensor, name);
    }
    return files;
}

}  // namespace

bool ShardedWeights::is_index(const InputFile& file) {
    if (!file.name().ends_with(".json") || file.size() == 0) return false;
    std::byte first{};
    file.read_at(0, std::span(&first, 1));
    return first == std::byte{'{'};
}

ShardedWeights::ShardedWeights(const InputFile& index) {
    const std::map<std::string, std::string> files = weight_map(index);
    const std::filesystem::path directory = std::filesystem::path(index.name()).parent_path();
    for (const auto& [tensor, name] : files) {
        const auto [shard, fresh] = shards_.try_emplace(name, directory / name);
        if (!shard->second.find(tensor) && !shard->second.unsupported().contains(tensor))
            throw DataError(
                fmt::format("{}: tensor {} should be in {}, which does not have it; download the files again",
                            index.name(), in_quotes(tensor), in_quotes(name)));
        shard_of_.emplace(tensor, &shard->second);
    }
    for (const auto& [file, shard] : shards_) {
        const auto require_listed = [&, &name = file](const std::string& tensor) {
            const auto found = files.find(tensor);
            if (found == files.end() || found->second != name)
                throw DataError(
                    fmt::format("{}: {} has tensor {}, which the index does not list; download the files again",
                                index.name(), in_quotes(name), in_quotes(tensor)));
        };
        for (const SafetensorsEntry& entry : shard.entries()) {
            require_listed(entry.name);
            entries_.push_back(entry);
        }
        for (const auto& [tensor, type] : shard.unsupported()) {
            require_listed(tensor);
            unsupported_.emplace(tensor, type);
        }
    }
}

const SafetensorsEntry* ShardedWeights::find(std::string_view name) const {
    const auto shard = shard_of_.find(name);
    return shard == shard_of_.end() ? nullptr : shard->second->find(name);
}

void ShardedWeights::read(std::string_view name, std::span<std::byte> to) const {
    shard_of_.at(std::string(name))->read(name, to);
}

}  // namespace lockstep::internal
