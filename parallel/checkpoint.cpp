#include "lockstep/parallel/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/parallel/safetensors.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operand.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

namespace {

/// The elements of `tensor`, row-major, on the host.
Tensor on_host(const Tensor& tensor) {
    const NoGrad no_tape;
    const Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype());
    copy.copy_(tensor);
    return copy;
}

std::byte* bytes_of(const Tensor& host) { return static_cast<std::byte*>(first_element(host)); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
    return Shape(std::span<const std::int64_t>(shape.data(), std::min<std::size_t>(shape.size(), Shape::max_dims)))
        .str();
}

bool convertible(DType from, DType to) { return from == to || (is_floating(from) && is_floating(to)); }

/// Names for a message: the first ones, and how many there are.
void append(std::string& text, const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    constexpr std::size_t most = 8;
    text += fmt::format("{}{} ", text.empty() ? "" : "; ", what);
    for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += fmt::format("{}{}", i ? ", " : "", names[i]);
    if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
}

/// Entries by the model's names.
std::map<std::string, const SafetensorsEntry*> by_name(const SafetensorsFile& file, const std::set<std::string>& known,
                                                       std::vector<std::string>& unexpected) {
    constexpr std::string_view prefix = "module.";
    std::map<std::string, const SafetensorsEntry*> found;
    for (const SafetensorsEntry& entry : file.entries()) {
        std::string name = entry.name;
        if (!known.contains(name) && name.starts_with(prefix)) name = name.substr(prefix.size());
        if (!known.contains(name) || !found.emplace(name, &entry).second) unexpected.push_back(entry.name);
    }
    return found;
}

}  // namespace

namespace detail {

void save_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path) {
    std::vector<Tensor> values;  // keeps the memory
    std::vector<SafetensorsTensor> entries;
    std::map<const void*, std::size_t> first;
    for (const NamedTensor& named : tensors) {
        const auto [known, fresh] = first.emplace(named.member->identity(), values.size());
        if (fresh) values.push_back(on_host(named.member->tensor()));
        const Tensor& value = values[known->second];
        entries.push_back({named.name, value.dtype(), {value.shape().begin(), value.shape().end()}, bytes_of(value)});
    }
    write_safetensors(path, entries, {{"format", "pt"}});
}

void load_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path) {
    const SafetensorsFile file(path);
    std::set<std::string> names;
    for (const NamedTensor& named : tensors) names.insert(named.name);
    std::vector<std::string> missing, unexpected, mismatched;
    const auto entries = by_name(file, names, unexpected);

    struct Value {
        const NamedTensor* target;
        Tensor tensor;
    };
    std::map<const void*, Value> values;
    for (const NamedTensor& named : tensors) {
        const auto found = entries.find(named.name);
        if (found == entries.end()) continue;
        const SafetensorsEntry& entry = *found->second;
        const Tensor& present = named.member->tensor();
        if (!std::equal(entry.shape.begin(), entry.shape.end(), present.shape().begin(), present.shape().end()) ||
            !convertible(entry.dtype, present.dtype())) {
            mismatched.push_back(fmt::format("{} ({} {} in the model, {} {} in the file)", named.name,
                                             name_of(present.dtype()), present.shape().str(), name_of(entry.dtype),
                                             shape_text(entry.shape)));
            values.insert({named.member->identity(), {&named, Tensor()}});  // not missing
            continue;
        }
        const Tensor value = Tensor::empty(present.shape(), entry.dtype);
        file.read(entry.name, {bytes_of(value), entry.bytes});
        const auto [known, fresh] = values.insert({named.member->identity(), {&named, value}});
        if (fresh || !known->second.tensor.defined()) continue;
        const Tensor& tied = known->second.tensor;
        if (tied.dtype() != entry.dtype || !std::equal(bytes_of(tied), bytes_of(tied) + entry.bytes, bytes_of(value)))
            mismatched.push_back(fmt::format("{} (tied to {} in the model, another value in the file)", named.name,
                                             known->second.target->name));
    }
    for (const NamedTensor& named : tensors)
        if (!values.contains(named.member->identity())) missing.push_back(named.name);

    std::string text;
    append(text, "missing", missing);
    append(text, "unexpected", unexpected);
    append(text, "different", mismatched);
    if (!text.empty())
        throw DataError(fmt::format("{} does not fit the model: {}; nothing was loaded", path.string(), text));
    const NoGrad no_tape;
    for (const auto& [identity, value] : values) value.target->member->tensor().copy_(value.tensor);
}

}  // namespace detail

}  // namespace lockstep
