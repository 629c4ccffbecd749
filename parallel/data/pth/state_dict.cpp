#include "lockstep/parallel/data/pth/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/parallel/data/pth/torch_types.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/shape.h"

namespace lockstep::internal {
namespace {

/// Usual names of the weights in a file that also holds an optimizer's state or averaged weights.
constexpr std::array<std::string_view, 3> usual_names = {"model_state_dict", "state_dict", "model"};

class StateDictFinder {
public:
    StateDictFinder(const Unpickled& pickle, const ZipArchive& zip, const std::string& directory,
                    const std::string& file)
        : pickle_(pickle),
          values_(pickle.values),
          root_(values_[pickle.root]),
          zip_(zip),
          directory_(directory),
          file_(file),
          offset_(pickle.offset) {}

    StateDict find(const std::string& wanted) const {
        StateDict found;
        if (is_module(pickle_.root)) {
            if (!wanted.empty())
                throw InvalidArgument(
                    fmt::format("{}: an archive of a TorchScript or C++ module has no dictionary {}; expected an empty "
                                "LoadOptions::entry",
                                file_, quote(wanted)));
            Names names;
            add_module(found, names, pickle_.root, "", 0);
            return found;
        }
        const PickleValue& dictionary = chosen(wanted);
        Names names;
        add_items(found, names, dictionary, "");
        if (&dictionary != &root_) add_values(found, root_);
        return found;
    }

private:
    [[noreturn]] void refuse(const std::string& what) const { refuse_pth(file_, offset_, what); }

    using Names = std::unordered_set<std::string>;

    /// Whether it is a module of TorchScript or of torch::save in C++.
    bool is_module(PickleIndex index) const {
        if (values_[index].kind != PickleKind::object) return false;
        const PickleGlobal& made_by = values_.global(values_[values_.object(values_[index]).made_by]);
        return values_.text(values_[made_by.module]).starts_with("__torch__");
    }

    /// Names members of modules "layer.weight".
    void add_module(StateDict& to, Names& names, PickleIndex module, const std::string& prefix, int depth) const {
        constexpr int deepest = 100;
        if (depth > deepest) refuse("its modules are nested more than 100 deep");
        const PickleValue& members = values_[values_.object(values_[module]).state];
        if (members.kind != PickleKind::dictionary)
            refuse(fmt::format("the members of {} are not stored by name", quote(prefix)));
        add_items(to, names, members, prefix);
        const std::span<const PickleIndex> items = values_.items(members);
        for (std::size_t i = 0; i < items.size(); i += 2) {
            if (!is_module(items[i + 1])) continue;
            if (values_[items[i]].kind != PickleKind::text) refuse("the name of a module is not a string");
            // members may be shared, so a few of them can have any number of names
            constexpr std::size_t most = 1'000'000;
            const std::string name = prefix + std::string(values_.text(values_[items[i]])) + ".";
            if (!names.insert(name).second) refuse("the name " + quote(name) + " is repeated");
            if (names.size() > most) refuse("its modules have more than a million names");
            add_module(to, names, items[i + 1], name, depth + 1);
        }
    }

    void add_items(StateDict& to, Names& names, const PickleValue& dictionary, const std::string& prefix) const {
        const std::span<const PickleIndex> items = values_.items(dictionary);
        for (std::size_t i = 0; i < items.size(); i += 2) {
            const PickleValue& key = values_[items[i]];
            const PickleValue& value = values_[items[i + 1]];
            if (value.kind != PickleKind::tensor) continue;
            if (key.kind != PickleKind::text) refuse("the name of a tensor is not a string");
            std::string name = prefix + std::string(values_.text(key));
            if (!names.insert(name).second) refuse("the name " + quote(name) + " is repeated");
            add(to, std::move(name), values_.tensor(value));
        }
        if (prefix.empty()) add_values(to, dictionary);
    }

    /// Adds the values that are not tensors. If a name occurs twice, the first value counts, which is in the dictionary
    /// of the tensors.
    void add_values(StateDict& to, const PickleValue& dictionary) const {
        const std::span<const PickleIndex> items = values_.items(dictionary);
        for (std::size_t i = 0; i < items.size(); i += 2) {
            if (values_[items[i]].kind != PickleKind::text || values_[items[i + 1]].kind == PickleKind::tensor)
                continue;
            std::string name(values_.text(values_[items[i]]));
            if (to.values.emplace(name, items[i + 1]).second) to.value_names.push_back(std::move(name));
        }
    }

    struct Named {
        std::string_view name;
        const PickleValue* value;
    };
    /// Whether it is a dictionary with a tensor whose key is a string.
    bool has_named_tensors(const PickleValue& value) const {
        if (!values_.has_tensors(value)) return false;
        const std::span<const PickleIndex> items = values_.items(value);
        for (std::size_t i = 0; i < items.size(); i += 2)
            if (values_[items[i]].kind == PickleKind::text && values_[items[i + 1]].kind == PickleKind::tensor)
                return true;
        return false;
    }

    /// The dictionaries at the top level that have tensors by name.
    std::vector<Named> candidates() const {
        std::vector<Named> found;
        const std::span<const PickleIndex> items = values_.items(root_);
        for (std::size_t i = 0; i < items.size(); i += 2)
            if (values_[items[i]].kind == PickleKind::text && has_named_tensors(values_[items[i + 1]]))
                found.push_back({values_.text(values_[items[i]]), &values_[items[i + 1]]});
        return found;
    }

    std::string top_names() const {
        constexpr std::size_t most = 8;
        std::string text;
        const std::span<const PickleIndex> items = values_.items(root_);
        for (std::size_t i = 0; i < std::min(items.size(), 2 * most); i += 2)
            text += (i > 0 ? ", " : "") + (values_[items[i]].kind == PickleKind::text
                                               ? quote(values_.text(values_[items[i]]))
                                               : std::string("a number"));
        return items.size() > 2 * most ? fmt::format("{} and {} more", text, items.size() / 2 - most) : text;
    }

    const PickleValue& chosen(const std::string& wanted) const {
        if (root_.kind == PickleKind::object || root_.kind == PickleKind::global)
            throw DataError(fmt::format(
                "{}: offset {}: it holds {}, which is neither read nor executed; expected a dictionary of tensors, as "
                "torch.save(model.state_dict(), 'weights.pth') in Python writes it",
                file_, offset_,
                quote(values_.full_name(root_.kind == PickleKind::object ? values_.object(root_).made_by
                                                                         : pickle_.root))));
        if (root_.kind != PickleKind::dictionary)
            throw DataError(
                fmt::format("{}: offset {}: it has no dictionary of tensors; save one in Python: "
                            "torch.save(model.state_dict(), 'weights.pth')",
                            file_, offset_));
        const std::vector<Named> all = candidates();
        if (!wanted.empty()) {
            const auto named =
                std::find_if(all.begin(), all.end(), [&](const Named& candidate) { return candidate.name == wanted; });
            if (named != all.end()) return *named->value;
            throw InvalidArgument(
                fmt::format("{}: no dictionary of tensors {}; it has {}", file_, quote(wanted), top_names()));
        }
        if (all.size() == 1) return *all.front().value;
        if (all.empty() && (has_named_tensors(root_) || values_.items(root_).empty())) return root_;
        std::vector<Named> usual;
        std::copy_if(all.begin(), all.end(), std::back_inserter(usual), [](const Named& candidate) {
            return std::find(usual_names.begin(), usual_names.end(), candidate.name) != usual_names.end();
        });
        if (usual.size() == 1) return *usual.front().value;
        throw DataError(
            all.empty() ? fmt::format("{}: offset {}: none of its top-level dictionaries has tensors by name, it has "
                                      "{}; save one that does in Python: torch.save(model.state_dict(), 'weights.pth')",
                                      file_, offset_, top_names())
                        : fmt::format("{}: offset {}: several of its dictionaries hold tensors, it has {}; select one "
                                      "by LoadOptions::entry",
                                      file_, offset_, top_names()));
    }

    std::vector<std::int64_t> counts(PickleIndex tuple) const {
        std::vector<std::int64_t> numbers;
        for (const PickleIndex item : values_.items(values_[tuple])) numbers.push_back(values_[item].value);
        return numbers;
    }

    /// The record that holds a storage; its length must match exactly.
    const ZipRecord& record_of(const PickleStorage& storage, const std::string& name) const {
        const std::string path = fmt::format("{}data/{}", directory_, values_.text(values_[storage.key]));
        const ZipRecord* record = zip_.find(path);
        if (!record) refuse(fmt::format("tensor {}: no record {}", quote(name), quote(path)));
        const std::uint64_t element = storage.typed ? torch_types[storage.type].bytes : 1;
        if (record->bytes % element != 0 || record->bytes / element != storage.elements)
            refuse(fmt::format("tensor {}: its storage has {} elements of {} bytes, but the record {} has {} bytes",
                               quote(name), storage.elements, element, quote(path), record->bytes));
        return *record;
    }

    void add(StateDict& to, std::string name, const PickleTensor& tensor) const {
        if (tensor.other_kind) {
            to.unsupported.emplace(std::move(name), values_.full_name(*tensor.other_kind));
            return;
        }
        const ZipRecord& record = record_of(values_.storage(tensor.storage), name);
        const TorchType& type = torch_types[tensor.type];
        const std::size_t dimensions = values_[tensor.sizes].length;
        if (!type.ours || dimensions > Shape::max_dims) {
            to.unsupported.emplace(std::move(name), type.ours ? fmt::format("{} dimensions", dimensions) : type.dtype);
            return;
        }
        PthEntry entry{std::move(name), *type.ours, counts(tensor.sizes)};
        entry.bytes = shape_bytes(entry.shape, type.bytes).value_or(0);
        to.entries.push_back(std::move(entry));
        to.layouts.push_back({&record, tensor.offset, counts(tensor.strides), tensor.negative});
    }

    const Unpickled& pickle_;
    const PickleValues& values_;
    const PickleValue& root_;
    const ZipArchive& zip_;
    const std::string& directory_;
    const std::string& file_;
    const std::uint64_t offset_;
};

}  // namespace

StateDict find_state_dict(const Unpickled& pickle, const std::string& wanted, const ZipArchive& zip,
                          const std::string& directory, const std::string& file) {
    return StateDictFinder(pickle, zip, directory, file).find(wanted);
}

}  // namespace lockstep::internal
