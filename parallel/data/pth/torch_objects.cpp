#include "lockstep/parallel/data/pth/torch_objects.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t max_dimensions = 64;  // PyTorch's limit

bool is(const PickleValues& values, PickleIndex index, TorchGlobal what) {
    return values[index].kind == PickleKind::global && values.global(values[index]).what == what;
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
            throw PickleFault("a size or stride of a tensor is not an integer from 0 to 2^63 - 1");
        numbers.push_back(values[item].value);
    }
    return numbers;
}

/// Throws if an element of the tensor is outside the `elements` of its storage.
void require_within(const PickleValues& values, const PickleTensor& tensor, std::uint64_t elements) {
    for (const PickleIndex tuple : {tensor.sizes, tensor.strides})
        if (values[tuple].length > max_dimensions) throw PickleFault("a tensor has more than 64 dimensions");
    const std::vector<std::int64_t> sizes = counts(values, tensor.sizes), strides = counts(values, tensor.strides);
    if (sizes.size() != strides.size()) throw PickleFault("a tensor has different numbers of strides and sizes");
    if (!shape_bytes(sizes, torch_types[tensor.type].bytes))
        throw PickleFault("the number of a tensor's elements overflows");
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
    const char* const beyond = "a tensor exceeds its storage";
    if (tensor.offset >= elements) throw PickleFault(beyond);
    std::uint64_t room = elements - 1 - tensor.offset;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
        const auto steps = static_cast<std::uint64_t>(sizes[d]) - 1, stride = static_cast<std::uint64_t>(strides[d]);
        if (steps > 0 && stride > room / steps) throw PickleFault(beyond);
        room -= steps * stride;
    }
}

/// Adds a tensor that is not read, but has a name.
PickleIndex add_other_tensor(PickleValues& values, PickleIndex made_by) {
    PickleTensor tensor;
    tensor.other_kind = made_by;
    return values.add_tensor(tensor);
}

/// Reads the metadata of a tensor: whether its elements must be negated or conjugated on reading.
void read_metadata(const PickleValues& values, PickleIndex metadata, PickleTensor& tensor) {
    if (values[metadata].kind == PickleKind::none) return;
    if (values[metadata].kind != PickleKind::dictionary) throw PickleFault("a tensor's metadata is not a dictionary");
    const std::span<const PickleIndex> items = values.items(values[metadata]);
    for (std::size_t i = 0; i < items.size(); i += 2) {
        const PickleValue& key = values[items[i]];
        const PickleValue& value = values[items[i + 1]];
        const std::string_view name = key.kind == PickleKind::text ? values.text(key) : "";
        const bool known = value.kind == PickleKind::boolean && (name == "neg" || name == "conj");
        if (!known) throw PickleFault("a tensor has metadata " + quote(name) + ", which is unknown");
        if (value.value == 0) continue;
        if (name == "neg") tensor.negative = true;
        // the conjugate of a real number is the number
    }
    if (tensor.negative && torch_types[tensor.type].ours == DType::boolean)
        throw PickleFault("a tensor of bools has the negative bit");
}

/// (storage, offset, sizes, strides, requires_grad, hooks), then the dtype of untyped storages, then metadata, if any.
PickleIndex rebuild_tensor(PickleValues& values, std::span<const PickleIndex> arguments, bool with_dtype) {
    const std::size_t fixed = with_dtype ? 7 : 6;
    if (!arguments.empty() && values[arguments[0]].kind == PickleKind::object)  // unknown type
        return add_other_tensor(values, values.object(values[arguments[0]]).made_by);
    if (with_dtype && arguments.size() >= fixed && is(values, arguments[fixed - 1], TorchGlobal::unknown))
        return add_other_tensor(values, arguments[fixed - 1]);
    if (!are(values, arguments,
             {PickleKind::storage, PickleKind::integer, PickleKind::tuple, PickleKind::tuple, PickleKind::boolean,
              PickleKind::dictionary}))
        throw PickleFault("a tensor is not described by storage, offset, sizes and strides");
    if (arguments.size() > fixed + 1)
        throw PickleFault("a tensor is described by " + std::to_string(arguments.size()) +
                          " values; expected at most " + std::to_string(fixed + 1));
    const auto index = static_cast<std::uint32_t>(values[arguments[0]].value);
    const PickleStorage& storage = values.storage(index);
    const std::int64_t offset = values[arguments[1]].value;
    if (offset < 0) throw PickleFault("a tensor begins before its storage");
    PickleTensor tensor{index, storage.type, static_cast<std::uint64_t>(offset), arguments[2], arguments[3]};
    std::uint64_t elements = storage.elements;
    if (with_dtype) {
        const std::size_t at = fixed - 1;
        if (arguments.size() <= at || !is(values, arguments[at], TorchGlobal::dtype) || storage.typed)
            throw PickleFault("a tensor with an explicit dtype is not of untyped storage and a dtype");
        tensor.type = values.global(values[arguments[at]]).type;
        elements /= torch_types[tensor.type].bytes;
    } else if (!storage.typed) {
        throw PickleFault("a tensor without dtype is of untyped storage");
    }
    require_within(values, tensor, elements);
    if (arguments.size() > fixed) read_metadata(values, arguments[fixed], tensor);
    return values.add_tensor(tensor);
}

/// (function, type, its arguments, attributes)
PickleIndex rebuild_from_type(PickleValues& values, std::span<const PickleIndex> arguments) {
    if (arguments.size() != 4 || !are(values, arguments, {PickleKind::global, PickleKind::global, PickleKind::tuple}))
        throw PickleFault("a tensor with attributes is not made of a function, a type and arguments");
    // a subclass defines the meaning of its elements
    if (!is(values, arguments[1], TorchGlobal::tensor_type)) return add_other_tensor(values, arguments[1]);
    const TorchGlobal function = values.global(values[arguments[0]]).what;
    if (function == TorchGlobal::unknown) return add_other_tensor(values, arguments[0]);
    const char* const no_tensor = "a tensor with attributes is not made by a function that makes tensors";
    if (function == TorchGlobal::rebuild_from_type) throw PickleFault(no_tensor);
    const PickleIndex made = call_global(values, arguments[0], arguments[2]);
    if (values[made].kind != PickleKind::tensor) throw PickleFault(no_tensor);
    return made;
}

}  // namespace

PickleIndex call_global(PickleValues& values, PickleIndex function, PickleIndex arguments) {
    if (values[function].kind == PickleKind::object)  // a bound method, or functools.partial
        return values.add_object(values.object(values[function]).made_by);
    if (values[function].kind != PickleKind::global || values[arguments].kind != PickleKind::tuple)
        throw PickleFault("a call is not of a function with a tuple of arguments");
    // copied, because adding values may move the original
    const std::span<const PickleIndex> given = values.items(values[arguments]);
    const std::vector<PickleIndex> all(given.begin(), given.end());
    switch (values.global(values[function]).what) {
        case TorchGlobal::unknown: return values.add_object(function);
        case TorchGlobal::ordered_dict:
            if (!all.empty()) throw PickleFault("an OrderedDict has arguments");
            return values.add_container(PickleKind::dictionary);
        case TorchGlobal::dictionary:
            if (all.size() == 1 && are(values, all, {PickleKind::dictionary})) return all.front();
            if (all.size() > 1) throw PickleFault("a dictionary is constructed from something other than a dictionary");
            return values.add_container(PickleKind::dictionary);
        case TorchGlobal::set:
            if (all.empty()) return values.add_tuple({});
            if (all.size() != 1 || !are(values, all, {PickleKind::list}))
                throw PickleFault("a set is constructed from something other than a list");
            return all.front();
        case TorchGlobal::size:
            if (all.size() != 1 || !are(values, all, {PickleKind::tuple}))
                throw PickleFault("the argument of a torch.Size is not a tuple");
            return all.front();
        case TorchGlobal::rebuild_tensor: return rebuild_tensor(values, all, false);
        case TorchGlobal::rebuild_tensor_with_dtype: return rebuild_tensor(values, all, true);
        case TorchGlobal::rebuild_parameter:
            if (all.size() != 3 || !are(values, all, {PickleKind::tensor, PickleKind::boolean}))
                throw PickleFault("a Parameter is not constructed from a tensor");
            return all.front();
        case TorchGlobal::rebuild_parameter_with_state:
            if (all.size() != 4 || !are(values, all, {PickleKind::tensor, PickleKind::boolean}))
                throw PickleFault("a Parameter is not constructed from a tensor");
            return all.front();
        case TorchGlobal::rebuild_from_type: return rebuild_from_type(values, all);
        case TorchGlobal::rebuild_other: return add_other_tensor(values, function);
        case TorchGlobal::typed_storage:
        case TorchGlobal::untyped_storage:
        case TorchGlobal::tensor_type:
        case TorchGlobal::dtype: break;
    }
    throw PickleFault("a type is called like a function");
}

PickleIndex storage_of_id(PickleValues& values, PickleIndex id) {
    const std::span<const PickleIndex> parts =
        values[id].kind == PickleKind::tuple ? values.items(values[id]) : std::span<const PickleIndex>();
    if (parts.size() != 5 ||
        !are(values, parts,
             {PickleKind::text, PickleKind::global, PickleKind::text, PickleKind::text, PickleKind::integer}) ||
        values.text(values[parts[0]]) != "storage" || values[parts[4]].value < 0)
        throw PickleFault("a persistent id is not that of a storage");
    if (is(values, parts[1], TorchGlobal::unknown)) return values.add_object(parts[1]);
    const bool typed = is(values, parts[1], TorchGlobal::typed_storage);
    if (!typed && !is(values, parts[1], TorchGlobal::untyped_storage))
        throw PickleFault("a storage has an unknown type");
    return values.add_storage(
        {parts[2], typed, values.global(values[parts[1]]).type, static_cast<std::uint64_t>(values[parts[4]].value)});
}

}  // namespace lockstep::internal
