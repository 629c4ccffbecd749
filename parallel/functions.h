// The steps of data parallelism as functions: torch.nn.parallel's scatter, replicate, parallel_apply and gather, and
// torch.cuda.comm's broadcast and reduce_add. One host thread calls them. They enqueue work and return, so that
// different devices work at the same time. DataParallel does the same with persistent replicas and without copying the
// model. These functions throw InvalidArgument in cases in which PyTorch silently loses data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/structure.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Cuts `tensor` along `dim` as torch.chunk does, into parts of size ceil(size / devices); the last one may be shorter.
/// Part i is on devices[i]. There are fewer parts than devices if the size runs out. A part on the tensor's own device
/// is a view. `chunk_sizes`, one per device, overrides the sizes. Differentiable. Throws InvalidArgument for a scalar,
/// a dimension of size 0, and chunk sizes that are not positive or whose sum differs from the size.
std::vector<Tensor> scatter(const Tensor& tensor, const Devices& devices, int dim = 0,
                            const std::vector<std::int64_t>& chunk_sizes = {});

/// Concatenates `tensors` along `dim` into a new tensor on `destination` (a device or the host). Scalars become a
/// vector with one element each. Differentiable. Throws InvalidArgument for an empty list, and for dtypes or other
/// dimensions that differ.
Tensor gather(const std::vector<Tensor>& tensors, Device destination, int dim = 0);

/// Copies of `tensor` on `devices`, in their order; the copy on its own device shares its memory. Differentiable: the
/// gradients of the copies are summed with reduce_add.
std::vector<Tensor> broadcast(const Tensor& tensor, const Devices& devices);

/// Sum of `tensors` as a new tensor on `destination`, which must hold one of them; default: the device of the first.
/// The sum follows the tree of sums over shards, so its bits depend only on the order of the list. Throws
/// InvalidArgument for an empty list, shapes or dtypes that differ, and any other destination.
Tensor reduce_add(const std::vector<Tensor>& tensors, std::optional<Device> destination = std::nullopt);

namespace detail {

/// Returns the leaves of part i in [i]. All defined leaves must have the same size along `dim`; undefined ones are
/// repeated. Without a defined leaf, there are as many parts as devices.
std::vector<std::vector<Tensor>> scatter_leaves(const std::vector<Tensor>& leaves, const Devices& devices, int dim,
                                                const std::vector<std::int64_t>& chunk_sizes);
/// Sets `replicas[i]`, members of copies of a model, to `originals` broadcast to devices[i].
void share_values(const std::vector<NamedTensor>& originals, const std::vector<std::vector<NamedTensor>>& replicas,
                  const Devices& devices);
[[noreturn]] void throw_no_outputs();
[[noreturn]] void throw_different_output(std::size_t index, const std::string& difference);
[[noreturn]] void throw_unequal_counts(std::size_t models, std::size_t inputs);
/// Waits for all devices and rethrows `error`, as the same class of Error, naming replica and device.
[[noreturn]] void rethrow_from_replica(std::size_t replica, const std::vector<NamedTensor>& members,
                                       const std::exception_ptr& error);

std::string quoted(const std::string& text);
std::string joined(const std::string& a, const std::string& b);
std::string length_difference(std::size_t here, std::size_t there);

template <class Key>
std::string key_text(const Key& key) {
    if constexpr (std::is_convertible_v<const Key&, std::string>)
        return quoted(std::string(key));
    else if constexpr (std::is_arithmetic_v<Key>)
        return std::to_string(key);
    else
        return quoted(typeid(Key).name());
}

/// Describes how `b` differs from `a`; empty if both have the same containers and the same values other than tensors.
template <class T>
std::string structure_difference(const T& b, const T& a) {
    if constexpr (structure::is_tensor<T>) {
        if (a.defined() == b.defined()) return "";
        return b.defined() ? "a tensor that is undefined in output 0" : "an undefined tensor that output 0 defines";
    } else if constexpr (structure::ListsMembers<T>) {
        return structure_difference(structure::members_of(b), structure::members_of(a));
    } else if constexpr (structure::OptionalLike<T>) {
        if (a.has_value() != b.has_value())
            return b.has_value() ? "a value that output 0 lacks" : "no value where output 0 has one";
        return a.has_value() ? structure_difference(*b, *a) : std::string();
    } else if constexpr (structure::MapLike<T>) {
        for (const auto& [key, entry] : a) {
            const auto found = b.find(key);
            if (found == b.end()) return joined("no key ", key_text(key));
            if (auto inner = structure_difference(found->second, entry); !inner.empty())
                return joined(inner, joined(" under key ", key_text(key)));
        }
        for (const auto& [key, entry] : b)
            if (a.find(key) == a.end()) return joined("a key that output 0 lacks: ", key_text(key));
        return "";
    } else if constexpr (structure::ListLike<T> && !structure::TupleLike<T>) {
        if (a.size() != b.size()) return length_difference(b.size(), a.size());
        auto left = a.begin();
        for (const auto& entry : b)
            if (auto inner = structure_difference(entry, *left++); !inner.empty()) return inner;
        return "";
    } else if constexpr (structure::TupleLike<T>) {
        std::string found;
        const auto compare = [&](const auto& y, const auto& x) {
            if (found.empty()) found = structure_difference(y, x);
        };
        [&]<std::size_t... i>(std::index_sequence<i...>) { (compare(std::get<i>(b), std::get<i>(a)), ...); }
        (std::make_index_sequence<std::tuple_size_v<T>>());
        return found;
    } else {
        Signature left, right;
        structure::describe(a, left);
        structure::describe(b, right);
        return left.bytes() == right.bytes() ? "" : "a different value, which is not a tensor and cannot be gathered";
    }
}

}  // namespace detail

/// Cuts every tensor in `value` (nested tuples, pairs, vectors, arrays, maps, optionals and structs with
/// LOCKSTEP_MEMBERS) and returns one such container per part. All tensors must have the same size along `dim`. All
/// other values are copied to each part. Without tensors there are as many copies as devices.
template <class T>
std::vector<structure::traced_t<T>> scatter(const T& value, const Devices& devices, int dim = 0,
                                            const std::vector<std::int64_t>& chunk_sizes = {}) {
    detail::require_walkable<T>();
    std::vector<Tensor> leaves;
    structure::for_each_tensor(value, [&](const Tensor& tensor) { leaves.push_back(tensor); });
    std::vector<structure::traced_t<T>> parts;
    for (const auto& part : detail::scatter_leaves(leaves, devices, dim, chunk_sizes)) {
        auto next = part.begin();
        parts.push_back(structure::replaced(value, [&] { return *next++; }));
    }
    return parts;
}

/// Gathers each tensor of containers of equal structure. Throws InvalidArgument, naming the position, if keys, lengths
/// or other values differ.
template <class T>
T gather(const std::vector<T>& outputs, Device destination, int dim = 0) {
    detail::require_walkable<T>();
    if (outputs.empty()) detail::throw_no_outputs();
    std::vector<std::vector<Tensor>> leaves(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        const std::string difference = detail::structure_difference(outputs[i], outputs[0]);
        if (!difference.empty()) detail::throw_different_output(i, difference);
        structure::for_each_tensor(outputs[i], [&](const Tensor& tensor) { leaves[i].push_back(tensor); });
    }
    T gathered = outputs[0];
    std::size_t leaf = 0;
    structure::for_each_tensor(gathered, [&](Tensor& tensor) {
        if (tensor.defined()) {
            std::vector<Tensor> parts;
            for (const auto& of_output : leaves) parts.push_back(of_output[leaf]);
            tensor = gather(parts, destination, dim);
        }
        ++leaf;
    });
    return gathered;
}

/// Copies of `model`, one per device. Their parameters are broadcast from the model's: gradients of all replicas are
/// summed into its parameters, in a fixed order (inside NoGrad they are detached). A replica on the model's device
/// shares its memory, so that its updates of running statistics persist; those of the other replicas are lost, as in
/// PyTorch. Ties and training modes are preserved. Throws InvalidArgument if the model's tensors are on more than one
/// device.
template <class Net>
std::vector<Net> replicate(Net& model, const Devices& devices) {
    std::vector<Net> replicas(static_cast<std::size_t>(devices.size()), model);
    std::vector<std::vector<NamedTensor>> members;
    for (Net& replica : replicas) members.push_back(named_tensors(replica));
    detail::share_values(named_tensors(model), members, devices);
    return replicas;
}

/// Calls `models[i].forward(inputs[i])` for all i (a tuple is spread over forward's parameters), each on the device of
/// its tensors. The number of inputs must equal the number of models: replicate to as many devices as scatter made
/// parts. An Error of a replica is rethrown after all devices are idle, naming replica and device.
template <class Net, class Input>
auto parallel_apply(std::vector<Net>& models, const std::vector<Input>& inputs) {
    using Result = std::remove_cvref_t<decltype(detail::call_forward(models[0], inputs[0]))>;
    if (models.size() != inputs.size()) detail::throw_unequal_counts(models.size(), inputs.size());
    std::vector<Result> outputs;
    for (std::size_t i = 0; i < models.size(); ++i) {
        try {
            outputs.push_back(detail::call_forward(models[i], inputs[i]));
        } catch (const Error&) {
            detail::rethrow_from_replica(i, named_tensors(models[i]), std::current_exception());
        }
    }
    return outputs;
}

}  // namespace lockstep
