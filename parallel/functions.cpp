#include "lockstep/parallel/functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/shard_tree.h"
#include "lockstep/runtime/placement.h"

namespace lockstep {

namespace {

void require_defined(const char* function, const Tensor& tensor) {
    if (!tensor.defined()) throw InvalidArgument(fmt::format("{}: a tensor is undefined", function));
}

/// Sizes of the parts of a dimension of `size` elements, one for each device that gets one.
std::vector<std::int64_t> part_sizes(const Shape& shape, int along, const Devices& devices,
                                     const std::vector<std::int64_t>& chunk_sizes) {
    const std::int64_t size = shape[along];
    if (size == 0)
        throw InvalidArgument(
            fmt::format("scatter: dimension {} of shape {} is empty; expected at least one row", along, shape.str()));
    if (chunk_sizes.empty()) {
        const BatchCut cut = cut_batch(size, devices.size());
        std::vector<std::int64_t> sizes;
        for (int part = 0; part < cut.present; ++part) sizes.push_back(cut.rows_of(part));
        return sizes;
    }
    if (chunk_sizes.size() != static_cast<std::size_t>(devices.size()))
        throw InvalidArgument(fmt::format("scatter: {} chunk sizes for {} devices; expected one for each",
                                          chunk_sizes.size(), devices.size()));
    std::int64_t sum = 0;
    for (const std::int64_t chunk : chunk_sizes) {
        // Compared one by one with the rest, so that no sum overflows.
        if (chunk < 1)
            throw InvalidArgument(fmt::format("scatter: a chunk size of {}; expected a positive number", chunk));
        if (chunk > size - sum)
            throw InvalidArgument(
                fmt::format("scatter: the sum of the chunk sizes is larger than the {} of dimension {} of {}", size,
                            along, shape.str()));
        sum += chunk;
    }
    if (sum != size)
        throw InvalidArgument(
            fmt::format("scatter: the sum of the chunk sizes is {}, but dimension {} of {} has {}; expected the same",
                        sum, along, shape.str(), size));
    return chunk_sizes;
}

int scattered_dim(const Tensor& tensor, int dim) {
    if (tensor.dims() == 0)
        throw InvalidArgument("scatter: a scalar cannot be cut; expected a number, which all replicas share");
    return wrap_dim(dim, tensor.dims(), "scatter");
}

std::vector<Tensor> cut_and_send(const Tensor& tensor, const Devices& devices, int along,
                                 const std::vector<std::int64_t>& sizes) {
    std::vector<Tensor> parts;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        parts.push_back(tensor.slice(along, start, start + sizes[i]).to(devices[static_cast<int>(i)]));
        start += sizes[i];
    }
    return parts;
}

/// cat for dtypes without gradients.
Tensor cat_plain(const std::vector<Tensor>& parts, int along, Device destination) {
    Shape shape = parts[0].shape();
    for (std::size_t i = 1; i < parts.size(); ++i) shape[along] += parts[i].size(along);
    const Tensor whole = Tensor::empty(shape, parts[0].dtype(), destination);
    std::int64_t start = 0;
    for (const Tensor& part : parts) {
        whole.slice(along, start, start + part.size(along)).copy_(part);
        start += part.size(along);
    }
    return whole;
}

}  // namespace

std::vector<Tensor> scatter(const Tensor& tensor, const Devices& devices, int dim,
                            const std::vector<std::int64_t>& chunk_sizes) {
    const ApiScope call("scatter");
    require_defined("scatter", tensor);
    const int along = scattered_dim(tensor, dim);
    return cut_and_send(tensor, devices, along, part_sizes(tensor.shape(), along, devices, chunk_sizes));
}

Tensor gather(const std::vector<Tensor>& tensors, Device destination, int dim) {
    const ApiScope call("gather");
    if (tensors.empty()) detail::throw_no_outputs();
    for (const Tensor& tensor : tensors) require_defined("gather", tensor);
    if (!destination.is_host()) require_visible(destination);
    const Tensor& first = tensors[0];
    const bool scalars = first.dims() == 0;
    const int along = wrap_dim(dim, std::max(1, first.dims()), "gather");
    for (std::size_t i = 1; i < tensors.size(); ++i) {
        Shape expected = first.shape();
        if (!scalars && tensors[i].dims() == first.dims()) expected[along] = tensors[i].size(along);
        if (!(tensors[i].shape() == expected))
            throw InvalidArgument(
                fmt::format("gather: tensor {} on {} is {} and the first {}; expected equal dimensions except {}", i,
                            tensors[i].device().str(), tensors[i].shape().str(), first.shape().str(), along));
        if (tensors[i].dtype() != first.dtype())
            throw InvalidArgument(fmt::format("gather: tensor {} is {} and the first {}; expected the same dtype", i,
                                              name_of(tensors[i].dtype()), name_of(first.dtype())));
    }
    std::vector<Tensor> parts;
    for (const Tensor& tensor : tensors) parts.push_back((scalars ? tensor.unsqueeze(0) : tensor).to(destination));
    const bool computed = first.dtype() == DType::f32 || first.dtype() == DType::f64;
    return computed ? cat(parts, along) : cat_plain(parts, along, destination);
}

std::vector<Tensor> broadcast(const Tensor& tensor, const Devices& devices) {
    const ApiScope call("broadcast");
    require_defined("broadcast", tensor);
    std::vector<Tensor> copies;
    for (const Device device : devices) copies.push_back(tensor.detach().to(device));
    if (needs_autograd({tensor}))
        add_autograd_node("broadcast", {tensor}, copies,
                          [origin = tensor.device()](const std::vector<Tensor>& gradients) {
                              std::vector<Tensor> arrived;
                              for (const Tensor& gradient : gradients)
                                  if (gradient.defined()) arrived.push_back(gradient.to(origin));
                              return std::vector<Tensor>{reduce_add(arrived)};
                          });
    return copies;
}

Tensor reduce_add(const std::vector<Tensor>& tensors, std::optional<Device> destination) {
    const ApiScope call("reduce_add");
    if (tensors.empty()) throw InvalidArgument("reduce_add: an empty list of tensors; expected at least one");
    for (const Tensor& tensor : tensors) require_defined("reduce_add", tensor);
    const Tensor& first = tensors[0];
    const Device where = destination.value_or(first.device());
    for (std::size_t i = 1; i < tensors.size(); ++i) {
        if (!(tensors[i].shape() == first.shape()))
            throw InvalidArgument(
                fmt::format("reduce_add: tensor {} on {} is {} and the first {}; expected the same shape", i,
                            tensors[i].device().str(), tensors[i].shape().str(), first.shape().str()));
        if (tensors[i].dtype() != first.dtype())
            throw InvalidArgument(fmt::format("reduce_add: tensor {} is {} and the first {}; expected the same dtype",
                                              i, name_of(tensors[i].dtype()), name_of(first.dtype())));
    }
    if (std::none_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.device() == where; }))
        throw InvalidArgument(fmt::format(
            "reduce_add: no tensor is on the destination {}; expected the device of one of them", where.str()));
    if (tensors.size() == 1) return first.clone();
    return combine_shards<Tensor>(
        static_cast<int>(tensors.size()), [&](int i) { return tensors[static_cast<std::size_t>(i)].to(where); }, add);
}

namespace detail {

std::vector<std::vector<Tensor>> scatter_leaves(const std::vector<Tensor>& leaves, const Devices& devices, int dim,
                                                const std::vector<std::int64_t>& chunk_sizes) {
    const ApiScope call("scatter");
    const auto defined = [](const Tensor& leaf) { return leaf.defined(); };
    const auto first = std::find_if(leaves.begin(), leaves.end(), defined);
    if (first == leaves.end())
        return std::vector<std::vector<Tensor>>(static_cast<std::size_t>(devices.size()), leaves);
    const std::int64_t size = first->size(scattered_dim(*first, dim));
    for (const Tensor& leaf : leaves)
        if (leaf.defined() && leaf.size(scattered_dim(leaf, dim)) != size)
            throw InvalidArgument(
                fmt::format("scatter: tensors of {} and {} in one call; expected the same size along dimension {}",
                            first->shape().str(), leaf.shape().str(), dim));
    const auto sizes = part_sizes(first->shape(), scattered_dim(*first, dim), devices, chunk_sizes);
    std::vector<std::vector<Tensor>> parts(sizes.size());
    for (const Tensor& leaf : leaves) {
        std::vector<Tensor> cut(sizes.size());
        if (leaf.defined()) cut = cut_and_send(leaf, devices, scattered_dim(leaf, dim), sizes);
        for (std::size_t i = 0; i < sizes.size(); ++i) parts[i].push_back(cut[i]);
    }
    return parts;
}

void share_values(const std::vector<NamedTensor>& originals, const std::vector<std::vector<NamedTensor>>& replicas,
                  const Devices& devices) {
    std::map<const void*, std::vector<Tensor>> copies;  // tied tensors are broadcast once
    for (std::size_t k = 0; k < originals.size(); ++k) {
        const ModuleTensor& original = *originals[k].member;
        const Tensor& value = original.tensor();
        const Tensor& first = originals[0].member->tensor();
        if (value.device() != first.device())
            throw InvalidArgument(fmt::format("replicate: {} is on {} and {} on {}; expected a model on one device",
                                              originals[k].name, value.device().str(), originals[0].name,
                                              first.device().str()));
        auto& of_value = copies[original.identity()];
        if (of_value.empty()) of_value = broadcast(value, devices);
        for (std::size_t r = 0; r < replicas.size(); ++r) replicas[r][k].member->rebind(of_value[r]);
    }
}

std::string quoted(const std::string& text) { return fmt::format("\"{}\"", text); }
std::string joined(const std::string& a, const std::string& b) { return a + b; }
std::string length_difference(std::size_t here, std::size_t there) {
    return fmt::format("a list of {} where output 0 has {}", here, there);
}

void throw_no_outputs() { throw InvalidArgument("gather: an empty list; expected at least one output"); }

void throw_different_output(std::size_t index, const std::string& difference) {
    throw InvalidArgument(
        fmt::format("gather: output {} has {}; expected the same structure from all replicas", index, difference));
}

void throw_unequal_counts(std::size_t models, std::size_t inputs) {
    throw InvalidArgument(
        fmt::format("parallel_apply: {} models and {} inputs; expected the same number", models, inputs));
}

void rethrow_from_replica(std::size_t replica, const std::vector<NamedTensor>& members,
                          const std::exception_ptr& error) {
    const std::string where = fmt::format("replica {} on {}: ", replica,
                                          members.empty() ? "no device" : members[0].member->tensor().device().str());
    try {
        drain_all_streams();
    } catch (const Error&) {
        // An error found later on a device must not hide the first one.
    }
    try {
        std::rethrow_exception(error);
    } catch (const InvalidEnvironment&) {
        throw;  // the same on every replica
    } catch (const InvalidArgument& e) {
        throw InvalidArgument(where + e.what());
    } catch (const OutOfMemory& e) {
        throw OutOfMemory(where + e.what());
    } catch (const DeviceError& e) {
        throw DeviceError(where + e.what());
    } catch (const Error& e) {
        throw Error(where + e.what());
    }
}

}  // namespace detail

}  // namespace lockstep
