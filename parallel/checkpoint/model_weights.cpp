#include "lockstep/parallel/checkpoint/model_weights.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/other_kind.h"
#include "lockstep/parallel/data/files/safetensors_header.h"
#include "lockstep/parallel/data/pth.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/digest.h"
#include "lockstep/runtime/internal/operands.h"

namespace lockstep::internal {

// Weights in several files, as Hugging Face's libraries write large models.

/// One of them: a safetensors file, or the state_dict in a file of torch.save.
class WeightShard {
public:
    explicit WeightShard(const std::filesystem::path& path) : WeightShard(InputFile(path)) {}
    const std::vector<SafetensorsEntry>& entries() const { return pth_ ? entries_ : safetensors_->entries(); }
    const std::map<std::string, std::string>& unsupported() const {
        return pth_ ? pth_->unsupported() : safetensors_->unsupported();
    }
    const SafetensorsEntry* find(std::string_view name) const {
        if (!pth_) return safetensors_->find(name);
        const PthEntry* const found = pth_->find(name);
        return found ? &entries_[static_cast<std::size_t>(found - pth_->entries().data())] : nullptr;
    }
    void read(std::string_view name, std::span<std::byte> to) const {
        pth_ ? pth_->read(name, to) : safetensors_->read(name, to);
    }

private:
    explicit WeightShard(InputFile&& file) {
        if (torch_file(file) != TorchFile::archive) {
            safetensors_.emplace(std::move(file));
            return;
        }
        pth_.emplace(std::move(file), "");
        for (const PthEntry& entry : pth_->entries())
            entries_.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .bytes = entry.bytes});
    }

    std::optional<SafetensorsFile> safetensors_;
    std::optional<PthFile> pth_;
    std::vector<SafetensorsEntry> entries_;  ///< those of a file of torch.save
};

/// The files that "model.safetensors.index.json" or "pytorch_model.bin.index.json" names, as one file.
class ShardedWeights {
public:
    /// Detected by its name and first byte.
    static bool is_index(const InputFile& file);
    /// Throws DataError if the index is not {"weight_map": {tensor: file}}, if a file name contains a path, or if a
    /// file is missing, damaged or has other tensors than the index lists.
    explicit ShardedWeights(const InputFile& index);

    const std::vector<SafetensorsEntry>& entries() const { return entries_; }
    const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
    const SafetensorsEntry* find(std::string_view name) const;
    void read(std::string_view name, std::span<std::byte> to) const;

private:
    std::map<std::string, WeightShard> shards_;  ///< by the name of the file
    std::map<std::string, const WeightShard*, std::less<>> shard_of_;
    std::vector<SafetensorsEntry> entries_;
    std::map<std::string, std::string> unsupported_;
};

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
        if (!file.is_string()) refuse("the file of tensor " + quote(tensor) + " is not a string");
        const auto& name = file.get_ref<const std::string&>();
        if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
            name.find('\0') != std::string::npos)
            refuse("the file " + quote(name) + " of tensor " + quote(tensor) +
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
                            index.name(), quote(tensor), quote(name)));
        shard_of_.emplace(tensor, &shard->second);
    }
    for (const auto& [file, shard] : shards_) {
        const auto require_listed = [&, &name = file](const std::string& tensor) {
            const auto found = files.find(tensor);
            if (found == files.end() || found->second != name)
                throw DataError(
                    fmt::format("{}: {} has tensor {}, which the index does not list; download the files again",
                                index.name(), quote(name), quote(tensor)));
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

namespace {

/// The elements of `tensor`, row-major, on the host.
Tensor on_host(const Tensor& tensor) {
    const NoGrad no_grad;
    const Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype());
    copy.copy_(tensor);
    return copy;
}

std::byte* bytes_of(const Tensor& host) { return static_cast<std::byte*>(first_element(host)); }

std::size_t size_in_bytes(const Tensor& tensor) {
    return static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
}

/// Whether `tensor` is a member in the arena where the store has put it.
bool is_in_store(const ParameterStore& store, const Tensor& tensor) {
    if (!tensor.is_contiguous() || tensor.device() != store.home()) return false;
    const auto holds = [first = static_cast<const std::byte*>(first_element(tensor))](const auto& arenas) {
        return std::any_of(arenas.begin(), arenas.end(), [&](const std::shared_ptr<Buffer>& arena) {
            const auto* const begin = static_cast<const std::byte*>(arena->data());
            return first >= begin && first < begin + arena->bytes();
        });
    };
    const Replica& home = store.replicas().front();
    return holds(home.parameters) || holds(home.buffers);
}

SafetensorsTensor described(const std::string& name, const Tensor& host) {
    return {name, host.dtype(), {host.shape().begin(), host.shape().end()}, bytes_of(host)};
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    return Shape(std::span<const std::int64_t>(shape.data(), std::min<std::size_t>(shape.size(), Shape::max_dims)))
        .str();
}

/// Whether PyTorch loads a tensor of this shape into `present`: files of PyTorch 0.3 store a scalar as one element.
bool fits(const std::vector<std::int64_t>& shape, const Shape& present) {
    if (present.empty() && shape.size() == 1 && shape[0] == 1) return true;
    return std::equal(shape.begin(), shape.end(), present.begin(), present.end());
}

/// Whether a file may lack it: batch normalization of PyTorch before 0.4.1 did not count its batches.
bool is_optional(const NamedTensor& named) {
    return !named.is_parameter && (named.name == "num_batches_tracked" || named.name.ends_with(".num_batches_tracked"));
}

/// Appends names to a message: the first ones, and their number.
void append(std::string& text, const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    constexpr std::size_t most = 8;
    text += fmt::format("{}{} ", text.empty() ? "" : "; ", what);
    for (std::size_t i = 0; i < std::min(names.size(), most); ++i) {
        const std::string name = internal::quote(names[i]);
        text += fmt::format("{}{}", i ? ", " : "", std::string_view(name).substr(1, name.size() - 2));
    }
    if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
}

/// The name without the prefixes of PyTorch's wrappers, as far as needed to find a known name.
std::string unwrapped(const std::string& name, const std::set<std::string>& known) {
    constexpr std::array<std::string_view, 2> prefixes{"module.", "_orig_mod."};
    std::string_view rest = name;
    while (!known.contains(std::string(rest))) {
        const auto* prefix = std::find_if(prefixes.begin(), prefixes.end(),
                                          [&](std::string_view candidate) { return rest.starts_with(candidate); });
        if (prefix == prefixes.end()) return name;
        rest.remove_prefix(prefix->size());
    }
    return std::string(rest);
}

void add_tensor(Digest& digest, std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
                std::span<const std::byte> bytes) {
    digest.add(name);
    digest.add(name_of(dtype));
    digest.add(std::uint64_t{shape.size()});
    for (const std::int64_t dimension : shape) digest.add(static_cast<std::uint64_t>(dimension));
    digest.add(bytes);
}

void require_no_entry(const std::string& file, const std::string& entry) {
    if (!entry.empty())
        throw InvalidArgument(fmt::format(
            "{}: no dictionary '{}' in a safetensors file; expected an empty LoadOptions::entry", file, entry));
}

/// `path`: for messages.
template <class File>
Tensor tensor_of(const File& file, const std::string& path, const std::string& name) {
    const auto* const entry = file.find(name);
    if (!entry) {
        const auto other = file.unsupported().find(name);
        if (other != file.unsupported().end())
            throw DataError(
                fmt::format("{}: tensor {} has the unsupported dtype {}", path, quote(name), quote(other->second)));
        throw InvalidArgument(
            fmt::format("load_tensor: {} has no tensor {} among its {}", path, quote(name), file.entries().size()));
    }
    if (entry->shape.size() > Shape::max_dims)
        throw DataError(fmt::format("{}: tensor {} has {} dimensions; at most {} are supported", path, quote(name),
                                    entry->shape.size(), Shape::max_dims));
    const Tensor value = Tensor::empty(Shape(std::span<const std::int64_t>(entry->shape)), entry->dtype);
    file.read(name, {bytes_of(value), static_cast<std::size_t>(entry->bytes)});
    return value;
}

/// Maps the names of a file to those of a model.
class NameMap {
public:
    NameMap(std::set<std::string> known, const LoadOptions& options) : known_(std::move(known)), options_(options) {}

    bool wants(const std::string& name) const { return !options_.filter || options_.filter(name); }

    /// The model's name for the tensor `name` of the file. Returns nullopt if the options exclude it, or if the model
    /// has no such tensor; the latter is added to `unexpected`.
    std::optional<std::string> model_name(const std::string& name, std::vector<std::string>& unexpected) {
        const std::string renamed = options_.rename ? options_.rename(name) : name;
        std::string found = unwrapped(renamed, known_);
        if (!wants(found)) return std::nullopt;
        if (known_.contains(found) && taken_.insert(found).second) return found;
        unexpected.push_back(name);
        return std::nullopt;
    }

private:
    std::set<std::string> known_, taken_;
    const LoadOptions& options_;
};

}  // namespace

std::string digest_of(const std::vector<SafetensorsTensor>& tensors) {
    std::map<std::string_view, const SafetensorsTensor*> by_name;
    for (const SafetensorsTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
    Digest digest;
    for (const auto& [name, tensor] : by_name) {
        std::size_t bytes = size_of(tensor->dtype);
        for (const std::int64_t dimension : tensor->shape) bytes *= static_cast<std::size_t>(dimension);
        add_tensor(digest, name, tensor->dtype, tensor->shape, {static_cast<const std::byte*>(tensor->data), bytes});
    }
    return digest.hex();
}

std::string digest_of(const SafetensorsFile& file) {
    std::map<std::string_view, const SafetensorsEntry*> by_name;
    for (const SafetensorsEntry& entry : file.entries()) by_name.emplace(entry.name, &entry);
    Digest digest;
    std::vector<std::byte> bytes;
    for (const auto& [name, entry] : by_name) {
        bytes.resize(entry->bytes);
        file.read(name, bytes);
        add_tensor(digest, name, entry->dtype, entry->shape, bytes);
    }
    return digest.hex();
}

HostWeights::HostWeights(const std::vector<NamedTensor>& tensors) {
    std::map<const void*, std::size_t> first;
    for (const NamedTensor& named : tensors) {
        const auto [known, fresh] = first.emplace(named.member->identity(), values_.size());
        if (fresh) values_.push_back(on_host(named.member->tensor()));
        tensors_.push_back(described(named.name, values_[known->second]));
    }
}

HostWeights::HostWeights(const std::vector<NamedTensor>& tensors, const ParameterStore& store, HostMemory& memory,
                         std::vector<StateCopy>& copies) {
    std::map<const void*, const void*> first;  // host memory by identity
    std::size_t bytes = 0;
    for (const NamedTensor& named : tensors) bytes += size_in_bytes(named.member->tensor());
    std::byte* next = memory.take(bytes);
    for (const NamedTensor& named : tensors) {
        const Tensor& tensor = named.member->tensor();
        const auto [known, fresh] = first.emplace(named.member->identity(), next);
        if (fresh && is_in_store(store, tensor)) {
            copies.push_back({next, first_element(tensor), store.home(), size_in_bytes(tensor)});
            next += size_in_bytes(tensor);
        } else if (fresh) {
            known->second = bytes_of(values_.emplace_back(on_host(tensor)));
        }
        tensors_.push_back({named.name, tensor.dtype(), {tensor.shape().begin(), tensor.shape().end()}, known->second});
    }
}

void put_weights(const std::filesystem::path& name, const std::vector<SafetensorsTensor>& weights,
                 SafetensorsMetadata metadata, const std::function<void(std::span<const std::byte>)>& put) {
    metadata["format"] = "pt";
    write_tensors(lay_out_safetensors(name, weights, metadata), put);
}

Tensor read_tensor(const std::filesystem::path& path, const std::string& name, const std::string& entry) {
    InputFile file(path);
    const std::string called = file.name();
    if (torch_file(file) == TorchFile::archive) return tensor_of(PthFile(std::move(file), entry), called, name);
    require_no_entry(called, entry);
    if (ShardedWeights::is_index(file)) return tensor_of(ShardedWeights(file), called, name);
    return tensor_of(SafetensorsFile(std::move(file)), called, name);
}

StagedWeights::StagedWeights(const std::vector<NamedTensor>& tensors, InputFile&& file, const LoadOptions& options)
    : tensors_(tensors) {
    const std::string name = file.name();
    if (torch_file(file) == TorchFile::archive) {
        stage(PthFile(std::move(file), options.entry), name, options);
        return;
    }
    if (ShardedWeights::is_index(file)) {
        require_no_entry(name, options.entry);
        stage(ShardedWeights(file), name, options);
        return;
    }
    const SafetensorsFile opened(std::move(file));
    require_no_entry(name, options.entry);
    stage(opened, name, options);
}

template <class File>
void StagedWeights::stage(const File& file, const std::string& called, const LoadOptions& options) {
    using Entry = std::remove_cvref_t<decltype(file.entries().front())>;
    std::set<std::string> known;
    for (const NamedTensor& named : tensors_) known.insert(named.name);
    NameMap names(std::move(known), options);
    std::map<std::string, const Entry*> found;
    std::map<std::string, std::string> of_unknown_type;
    std::vector<std::string> extra;  // tensors of unsupported dtypes that the model does not have
    for (const Entry& entry : file.entries())
        if (const auto name = names.model_name(entry.name, result_.unexpected)) found.emplace(*name, &entry);
    for (const auto& [name, type] : file.unsupported())
        if (const auto model_name = names.model_name(name, extra)) of_unknown_type.emplace(*model_name, type);

    for (const NamedTensor& named : tensors_) {
        if (const auto entry = found.find(named.name); entry != found.end()) read(named, file, *entry->second);
        if (const auto type = of_unknown_type.find(named.name); type != of_unknown_type.end()) {
            mismatched_.push_back(fmt::format("{} ({} in the model; unsupported dtype {} in the file)", named.name,
                                              name_of(named.member->tensor().dtype()), type->second));
            values_.insert({named.member->identity(), {&named, Tensor()}});  // not missing
        }
    }
    for (const NamedTensor& named : tensors_)
        if (!values_.contains(named.member->identity()) && names.wants(named.name) && !is_optional(named))
            result_.missing.push_back(named.name);

    std::string text;
    if (options.strict) append(text, "missing", result_.missing);
    if (options.strict) append(text, "unexpected", result_.unexpected);
    append(text, "different", mismatched_);
    if (!text.empty()) throw DataError(fmt::format("{} does not fit the model: {}; nothing was loaded", called, text));
    result_.unexpected.insert(result_.unexpected.end(), extra.begin(), extra.end());
}

template <class File, class Entry>
void StagedWeights::read(const NamedTensor& named, const File& file, const Entry& entry) {
    const Tensor& present = named.member->tensor();
    if (!fits(entry.shape, present.shape())) {
        mismatched_.push_back(fmt::format("{} ({} {} in the model, {} {} in the file)", named.name,
                                          name_of(present.dtype()), present.shape().str(), name_of(entry.dtype),
                                          shape_text(entry.shape)));
        values_.insert({named.member->identity(), {&named, Tensor()}});  // not missing
        return;
    }
    const Tensor value = Tensor::empty(present.shape(), entry.dtype);
    file.read(entry.name, {bytes_of(value), entry.bytes});
    const auto [known, fresh] = values_.insert({named.member->identity(), {&named, value}});
    if (fresh || !known->second.tensor.defined()) return;
    const Tensor& tied = known->second.tensor;
    if (tied.dtype() != entry.dtype || !std::equal(bytes_of(tied), bytes_of(tied) + entry.bytes, bytes_of(value)))
        mismatched_.push_back(fmt::format("{} (tied to {} in the model, another value in the file)", named.name,
                                          known->second.target->name));
}

std::string StagedWeights::digest() const {
    std::vector<SafetensorsTensor> all;
    for (const NamedTensor& named : tensors_)
        if (const auto value = values_.find(named.member->identity()); value != values_.end())
            all.push_back(described(named.name, value->second.tensor));
    return digest_of(all);
}

void StagedWeights::store() const {
    const NoGrad no_grad;
    for (const auto& [identity, value] : values_) value.target->member->tensor().copy_(value.tensor);
}

}  // namespace lockstep::internal
