#include "lockstep/parallel/data/pth/torch_objects.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "lockstep/parallel/data/files/shape_bytes.h"
#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t most_dimensions = 64;  // PyTorch's limit

TorchGlobal global_of(const PickleValue& value) { return static_cast<TorchGlobal>(value.value); }

bool is(const PickleValue& value, TorchGlobal global) {
    return value.kind == PickleKind::global && global_of(value) == global;
}

/// Whether the arguments begin with these kinds of values.
bool are(const PickleValues& values, std::span<const PickleIndex> arguments, std::initializer_list<PickleKind> kinds) {
    return arguments.size() >= kinds.size() &&
           std::equal(kinds.begin(), kinds.end(), arguments.begin(),
                      [&](PickleKind kind, PickleIndex argument) { return values[argument].kind == kind; });
}

/// Sizes or strides.
std::vector<std::int64_t> counts(const PickleValues& values, PickleIndex tuple) {
    std::vector<std::int64_t> numbers;
    for (const PickleIndex item : values.items(values[tuple])) {
        if (values[item].kind != PickleKind::integer || values[item].value < 0)
            throw PickleFault("a tensor's size or stride is not a whole number from 0 to 2^63 - 1");
        numbers.push_back(values[item].value);
    }
    return numbers;
}

/// Throws where one of the tensor's elements lies beyond the `elements` of its storage.
void require_within(const PickleValues& values, const PickleTensor& tensor, std::uint64_t elements) {
    for (const PickleIndex tuple : {tensor.sizes, tensor.strides})
        if (values[tuple].length > most_dimensions) throw PickleFault("a tensor has more than 64 dimensions");
    const std::vector<std::int64_t> sizes = counts(values, tensor.sizes), strides = counts(values, tensor.strides);
    if (sizes.size() != strides.size()) throw PickleFault("a tensor has not as many strides as sizes");
    if (!shape_bytes(sizes, torch_types[tensor.type].bytes))
        throw PickleFault("a tensor has more elements than can be counted");
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
    const char* const beyond = "a tensor reaches out of its storage";
    if (tensor.offset >= elements) throw PickleFault(beyond);
    std::uint64_t room = elements - 1 - tensor.offset;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        const auto steps = static_cast<std::uint64_t>(sizes[d]) - 1, stride = static_cast<std::uint64_t>(strides[d]);
        if (steps > 0 && stride > room / steps) throw PickleFault(beyond);
        room -= steps * stride;
    }
}

/// (storage, offset, sizes, strides, requires_grad, hooks), then the dtype of untyped storages, then nothing that
/// matters.
PickleIndex rebuild_tensor(PickleValues& values, std::span<const PickleIndex> arguments, bool with_dtype) {
    if (!are(values, arguments,
             {PickleKind::storage, PickleKind::integer, PickleKind::tuple, PickleKind::tuple, PickleKind::boolean,
              PickleKind::dictionary}))
        throw PickleFault("a tensor is not described by storage, offset, sizes and strides");
    const auto index = static_cast<std::uint32_t>(values[arguments[0]].value);
    const PickleStorage& storage = values.storage(index);
    const std::int64_t offset = values[arguments[1]].value;
    if (offset < 0) throw PickleFault("a tensor begins before its storage");
    PickleTensor tensor{index, storage.type, static_cast<std::uint64_t>(offset), arguments[2], arguments[3]};
    std::uint64_t elements = storage.elements;
    if (with_dtype) {
        constexpr std::size_t at = 6;
        if (arguments.size() <= at || !is(values[arguments[at]], TorchGlobal::dtype) || storage.typed)
            throw PickleFault("a tensor with a dtype of its own is not of untyped storage and a dtype");
        tensor.type = values[arguments[at]].length;
        elements /= torch_types[tensor.type].bytes;
    } else if (!storage.typed) {
        throw PickleFault("a tensor without dtype is of untyped storage");
    }
    require_within(values, tensor, elements);
    return values.add_tensor(tensor);
}

}  // namespace

PickleIndex call_global(PickleValues& values, PickleValue function, PickleValue arguments) {
    if (function.kind != PickleKind::global || arguments.kind != PickleKind::tuple)
        throw PickleFault("what is called is no function, or its arguments are no tuple");
    const std::span<const PickleIndex> all = values.items(arguments);
    switch (global_of(function)) {
        case TorchGlobal::ordered_dict:
            if (!all.empty()) throw PickleFault("an OrderedDict has arguments");
            return values.add_container(PickleKind::dictionary);
        case TorchGlobal::size:
            if (all.size() != 1 || !are(values, all, {PickleKind::tuple}))
                throw PickleFault("the argument of a torch.Size is no tuple");
            return all.front();
        case TorchGlobal::rebuild_tensor: return rebuild_tensor(values, all, false);
        case TorchGlobal::rebuild_tensor_with_dtype: return rebuild_tensor(values, all, true);
        case TorchGlobal::rebuild_parameter:
            if (!are(values, all, {PickleKind::tensor, PickleKind::boolean}))
                throw PickleFault("a Parameter is not made of a tensor");
            return all.front();
        case TorchGlobal::typed_storage:
        case TorchGlobal::untyped_storage:
        case TorchGlobal::dtype: break;
    }
    throw PickleFault("a type is called as if it were a function");
}

PickleIndex storage_of_id(PickleValues& values, PickleValue id) {
    const std::span<const PickleIndex> parts =
        id.kind == PickleKind::tuple ? values.items(id) : std::span<const PickleIndex>();
    if (parts.size() != 5 ||
        !are(values, parts,
             {PickleKind::text, PickleKind::global, PickleKind::text, PickleKind::text, PickleKind::integer}) ||
        values.text(values[parts[0]]) != "storage" || values[parts[4]].value < 0)
        throw PickleFault("a persistent id is not that of a storage");
    const PickleValue type = values[parts[1]];
    const bool typed = is(type, TorchGlobal::typed_storage);
    if (!typed && !is(type, TorchGlobal::untyped_storage)) throw PickleFault("a storage is of no type of storages");
    return values.add_storage({parts[2], typed, type.length, static_cast<std::uint64_t>(values[parts[4]].value)});
}

}  // namespace lockstep::internal
