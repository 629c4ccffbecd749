#include "lockstep/parallel/checkpoint/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/parallel/checkpoint/sharded_weights.h"
#include "lockstep/parallel/data/files/digest.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/in_quotes.h"
#include "lockstep/parallel/data/files/torch_file.h"
#include "lockstep/parallel/data/pth.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operand.h"

namespace lockstep::internal {
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

/// Whether it is a member as the store has put it into its arenas.
bool lies_in(const ParameterStore& store, const Tensor& tensor) {
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

/// Whether PyTorch loads a tensor of this shape into `present`: files of PyTorch 0.3 have one element for a scalar.
bool fits(const std::vector<std::int64_t>& shape, const Shape& present) {
    if (present.empty() && shape.size() == 1 && shape[0] == 1) return true;
    return std::equal(shape.begin(), shape.end(), present.begin(), present.end());
}

/// Whether values of the file's dtype become those of the model. Weights of integers are somebody's codes for numbers.
bool convertible(const NamedTensor& named, DType from) {
    const DType to = named.member->tensor().dtype();
    return from == to || (is_floating(from) && is_floating(to)) || !named.is_parameter;
}

/// Whether a file may lack it: batch normalization of PyTorch before 0.4.1 did not count its batches.
bool is_optional(const NamedTensor& named) {
    return !named.is_parameter && (named.name == "num_batches_tracked" || named.name.ends_with(".num_batches_tracked"));
}

/// Names for a message: the first ones, and how many there are.
void append(std::string& text, const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    constexpr std::size_t most = 8;
    text += fmt::format("{}{} ", text.empty() ? "" : "; ", what);
    for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += fmt::format("{}{}", i ? ", " : "", names[i]);
    if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
}

/// Without what wrappers of PyTorch put before a name, as far as it takes to find a name that is known.
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

void require_no_entry(const std::filesystem::path& path, const std::string& entry) {
    if (!entry.empty())
        throw InvalidArgument(
            fmt::format("{}: no dictionary '{}' in a safetensors file; expected an empty LoadOptions::entry",
                        path.string(), entry));
}

template <class File>
Tensor tensor_of(const File& file, const std::filesystem::path& path, const std::string& name) {
    const auto* const entry = file.find(name);
    if (!entry) {
        const auto other = file.unsupported().find(name);
        if (other != file.unsupported().end())
            throw DataError(fmt::format("{}: tensor {} has the unsupported dtype {}", path.string(), in_quotes(name),
                                        in_quotes(other->second)));
        throw InvalidArgument(fmt::format("load_tensor: {} has no tensor {} among its {}", path.string(),
                                          in_quotes(name), file.entries().size()));
    }
    if (entry->shape.size() > Shape::max_dims)
        throw DataError(fmt::format("{}: tensor {} has {} dimensions; at most {} are supported", path.string(),
                                    in_quotes(name), entry->shape.size(), Shape::max_dims));
    const Tensor value = Tensor::empty(Shape(std::span<const std::int64_t>(entry->shape)), entry->dtype);
    file.read(name, {bytes_of(value), static_cast<std::size_t>(entry->bytes)});
    return value;
}

/// The names of a file by those of a model.
class NameMap {
public:
    NameMap(std::set<std::string> known, const LoadOptions& options) : known_(std::move(known)), options_(options) {}

    bool wants(const std::string& name) const { return !options_.filter || options_.filter(name); }

    /// Whose tensor the one called `name` in the file is; nothing where it takes no part, or belongs to none and then
    /// is told in `unexpected`.
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
        if (fresh && lies_in(store, tensor)) {
            copies.push_back({next, first_element(tensor), store.home(), size_in_bytes(tensor)});
            next += size_in_bytes(tensor);
        } else if (fresh) {
            known->second = bytes_of(values_.emplace_back(on_host(tensor)));
        }
        tensors_.push_back({named.name, tensor.dtype(), {tensor.shape().begin(), tensor.shape().end()}, known->second});
    }
}

Tensor read_tensor(const std::filesystem::path& path, const std::string& name, const std::string& entry) {
    InputFile file(path);
    if (torch_file(file) == TorchFile::archive) return tensor_of(PthFile(std::move(file), entry), path, name);
    require_no_entry(path, entry);
    if (ShardedWeights::is_index(file)) return tensor_of(ShardedWeights(file), path, name);
    return tensor_of(SafetensorsFile(std::move(file)), path, name);
}

StagedWeights::StagedWeights(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path,
                             const LoadOptions& options)
    : tensors_(tensors) {
    InputFile file(path);
    if (torch_file(file) == TorchFile::archive) {
        stage(PthFile(std::move(file), options.entry), path, options);
        return;
    }
    if (ShardedWeights::is_index(file)) {
        require_no_entry(path, options.entry);
        stage(ShardedWeights(file), path, options);
        return;
    }
    const SafetensorsFile opened(std::move(file));
    require_no_entry(path, options.entry);
    stage(opened, path, options);
}

template <class File>
void StagedWeights::stage(const File& file, const std::filesystem::path& path, const LoadOptions& options) {
    using Entry = std::remove_cvref_t<decltype(file.entries().front())>;
    std::set<std::string> known;
    for (const NamedTensor& named : tensors_) known.insert(named.name);
    NameMap names(std::move(known), options);
    std::map<std::string, const Entry*> found;
    std::map<std::string, std::string> of_unknown_type;
    std::vector<std::string> extra;  // of types that Lockstep has not: they can be nobody's
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
    if (!text.empty())
        throw DataError(fmt::format("{} does not fit the model: {}; nothing was loaded", path.string(), text));
    result_.unexpected.insert(result_.unexpected.end(), extra.begin(), extra.end());
}

template <class File, class Entry>
void StagedWeights::read(const NamedTensor& named, const File& file, const Entry& entry) {
    const Tensor& present = named.member->tensor();
    if (!fits(entry.shape, present.shape()) || !convertible(named, entry.dtype)) {
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
