// Values that a pickle of torch.save builds. They refer to each other by number, so that cycles and depth are harmless
// for traversal and destruction, and shared values are stored once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {

using PickleIndex = std::uint32_t;

enum class PickleKind : std::uint8_t {
    none,
    boolean,
    integer,
    large_integer,  ///< more than 64 bits; its value is not read
    number,
    text,
    bytes,
    tuple,
    list,  ///< or a set
    dictionary,
    global,   ///< a function or type
    object,   ///< result of an unknown global
    storage,  ///< a record of elements
    tensor
};

struct PickleValue {
    PickleKind kind = PickleKind::none;
    std::uint32_t length = 0;  ///< for text or a tuple
    std::int64_t value = 0;    ///< the integer, boolean or bits of the number; otherwise the position of the content in
                               ///< PickleValues
};

struct PickleGlobal {
    TorchGlobal what;
    std::uint32_t type = 0;  ///< for a global: NamedGlobal::type
    PickleIndex module = 0, name = 0;
};

struct PickleObject {
    PickleIndex made_by = 0;  ///< a global
    PickleIndex state = 0;    ///< set by the pickle after the call; `made_by` if it was not set
};

/// Elements in a record of the archive.
struct PickleStorage {
    PickleIndex key = 0;  ///< name of the record, after "data/"
    bool typed = false;   ///< if false, the size is a number of bytes
    std::uint32_t type = 0;
    std::uint64_t elements = 0;
};

/// A tensor of this type in a storage, with all its elements inside the storage.
struct PickleTensor {
    std::uint32_t storage = 0, type = 0;
    std::uint64_t offset = 0;  ///< in elements
    PickleIndex sizes = 0, strides = 0;
    bool negative = false;                    ///< the values are those of the storage, negated
    std::optional<PickleIndex> other_kind{};  ///< the global that creates it, if its elements are not dense
};

class PickleValues {
public:
    /// `text` holds all strings.
    explicit PickleValues(std::string text) : text_(std::move(text)) {}

    const std::string& bytes() const { return text_; }
    const PickleValue& operator[](PickleIndex index) const { return values_[index]; }
    std::size_t size() const { return values_.size(); }
    std::string_view text(const PickleValue& value) const {
        return std::string_view(text_).substr(static_cast<std::size_t>(value.value), value.length);
    }
    /// The items of a tuple or a list; of a dictionary, each key followed by its value.
    std::span<const PickleIndex> items(const PickleValue& value) const {
        if (value.kind == PickleKind::tuple)
            return std::span(tuples_).subspan(static_cast<std::size_t>(value.value), value.length);
        if (value.kind == PickleKind::object || value.value == unfilled) return {};
        return containers_[static_cast<std::size_t>(value.value)].items;
    }
    /// Whether a value of the dictionary is a tensor.
    bool has_tensors(const PickleValue& value) const {
        return value.kind == PickleKind::dictionary && value.value != unfilled &&
               containers_[static_cast<std::size_t>(value.value)].tensors;
    }
    const PickleStorage& storage(std::uint32_t index) const { return storages_[index]; }
    const PickleTensor& tensor(const PickleValue& value) const {
        return tensors_[static_cast<std::size_t>(value.value)];
    }

    const PickleGlobal& global(const PickleValue& value) const {
        return globals_[static_cast<std::size_t>(value.value)];
    }
    const PickleObject& object(const PickleValue& value) const {
        return objects_[static_cast<std::size_t>(value.value)];
    }
    /// "torch.nn.modules.linear.Linear"
    std::string full_name(PickleIndex global_index) const {
        const PickleGlobal& found = global(values_[global_index]);
        return std::string(text(values_[found.module])) + '.' + std::string(text(values_[found.name]));
    }

    PickleIndex add(const PickleValue& value) {
        values_.push_back(value);
        return static_cast<PickleIndex>(values_.size() - 1);
    }
    PickleIndex add_integer(std::int64_t value) { return add({PickleKind::integer, 0, value}); }
    PickleIndex add_tuple(std::span<const PickleIndex> items) {
        const auto begin = static_cast<std::int64_t>(tuples_.size());
        tuples_.insert(tuples_.end(), items.begin(), items.end());
        return add({PickleKind::tuple, static_cast<std::uint32_t>(items.size()), begin});
    }
    /// An empty list or dictionary. It allocates memory with its first item.
    PickleIndex add_container(PickleKind kind) { return add({kind, 0, unfilled}); }
    PickleIndex add_storage(const PickleStorage& storage) {
        storages_.push_back(storage);
        return add({PickleKind::storage, 0, std::ssize(storages_) - 1});
    }
    PickleIndex add_tensor(const PickleTensor& tensor) {
        tensors_.push_back(tensor);
        return add({PickleKind::tensor, 0, std::ssize(tensors_) - 1});
    }
    PickleIndex add_global(const PickleGlobal& global) {
        globals_.push_back(global);
        return add({PickleKind::global, 0, std::ssize(globals_) - 1});
    }
    PickleIndex add_object(PickleIndex made_by) {
        objects_.push_back({made_by, made_by});
        return add({PickleKind::object, 0, std::ssize(objects_) - 1});
    }
    void set_state(PickleIndex object, PickleIndex state) {
        objects_[static_cast<std::size_t>(values_[object].value)].state = state;
    }
    /// Appends to a list or, keys and values in turn, to a dictionary.
    void append(PickleIndex container, std::span<const PickleIndex> items) {
        if (items.empty()) return;
        PickleValue& value = values_[container];
        if (value.value == unfilled) {
            value.value = std::ssize(containers_);
            containers_.emplace_back();
        }
        Container& of = containers_[static_cast<std::size_t>(value.value)];
        for (const PickleIndex item : items) of.tensors = of.tensors || values_[item].kind == PickleKind::tensor;
        of.items.insert(of.items.end(), items.begin(), items.end());
    }

private:
    static constexpr std::int64_t unfilled = -1;
    struct Container {
        std::vector<PickleIndex> items;
        bool tensors = false;
    };
    std::string text_;
    std::vector<PickleValue> values_;
    std::vector<PickleIndex> tuples_;
    std::vector<Container> containers_;
    std::vector<PickleStorage> storages_;
    std::vector<PickleTensor> tensors_;
    std::vector<PickleGlobal> globals_;
    std::vector<PickleObject> objects_;
};

}  // namespace lockstep::internal
