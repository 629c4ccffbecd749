#include "lockstep/parallel/comm/group/tensor_calls.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep::calls {

namespace {

using Use = TensorRange::Use;
using Sizes = std::vector<std::size_t>;

TensorRange range(std::string_view operation, const Tensor& tensor, Use use) {
    return {operation, std::span(&tensor, 1), use};
}

std::string text_of(const Tensor& tensor) {
    return tensor.defined() ? fmt::format("{} {}", name_of(tensor.dtype()), tensor.shape().str()) : "undefined";
}

void require_defined(std::string_view operation, const Tensor& tensor) {
    if (!tensor.defined()) throw InvalidArgument(fmt::format("{}: a tensor is undefined", operation));
}

void require_root(std::string_view operation, Caller caller, int root) {
    if (root < 0 || root >= caller.size)
        throw InvalidArgument(fmt::format("{}: root {} in a group of {}; expected 0 to {}", operation, root,
                                          caller.size, caller.size - 1));
}

void require_op(std::string_view operation, const Tensor& tensor, ReduceOp op) {
    require_defined(operation, tensor);
    if (op == ReduceOp::mean && tensor.dtype() == DType::boolean)
        throw InvalidArgument(
            fmt::format("{}: booleans have no mean; expected sum (\"or\") or product (\"and\")", operation));
}

void require_same_dtype(std::string_view operation, const Tensor& out, const Tensor& in) {
    require_defined(operation, out);
    require_defined(operation, in);
    if (out.dtype() != in.dtype())
        throw InvalidArgument(
            fmt::format("{}: out is {}, in is {}; expected the same dtype", operation, text_of(out), text_of(in)));
}

/// Requires one tensor per rank.
void require_one_a_rank(std::string_view operation, Caller caller, std::string_view name, Tensors list) {
    if (list.size() != static_cast<std::size_t>(caller.size))
        throw InvalidArgument(fmt::format("{}: {} tensors in {} in a group of {}; expected one per rank", operation,
                                          list.size(), name, caller.size));
}

/// Requires `one` to be the same on every rank: the input or output for part `index` of `list`.
void require_alike(std::string_view operation, std::string_view list_name, Tensors list, int index, const Tensor& one) {
    const Tensor& part = list[static_cast<std::size_t>(index)];
    require_same_dtype(operation, part, one);
    if (!(part.shape() == one.shape()))
        throw InvalidArgument(fmt::format("{}: {}[{}] is {}, the corresponding tensor {}; expected the same shape",
                                          operation, list_name, index, text_of(part), text_of(one)));
}

void require_all_alike(std::string_view operation, Caller caller, std::string_view list_name, Tensors list,
                       const Tensor& one) {
    require_one_a_rank(operation, caller, list_name, list);
    for (int rank = 0; rank < caller.size; ++rank) require_alike(operation, list_name, list, rank, one);
}

void require_nothing(std::string_view operation, Caller caller, std::string_view list_name, Tensors list, int root) {
    if (!list.empty())
        throw InvalidArgument(
            fmt::format("{}: rank {} passes {} tensors in {}, which belongs to root {}; expected {{}}", operation,
                        caller.rank, list.size(), list_name, root));
}

/// Requires `whole` to be (ranks, part...) or (ranks * part[0], ...).
void require_whole(std::string_view operation, Caller caller, std::string_view whole_name, const Tensor& whole,
                   const Tensor& part) {
    Shape stacked = part.shape(), joined = part.shape();
    if (stacked.dims() < Shape::max_dims) stacked.insert(0, caller.size);
    if (joined.dims() > 0) joined[0] *= caller.size;
    if (whole.shape() == stacked || (part.dims() > 0 && whole.shape() == joined)) return;
    throw InvalidArgument(fmt::format("{}: {} is {} in a group of {} whose parts are {}; expected {}{}", operation,
                                      whole_name, text_of(whole), caller.size, text_of(part), stacked.str(),
                                      part.dims() > 0 ? " or " + joined.str() : std::string()));
}

void require_no_overlap(std::string_view operation, const TensorRange& out, const TensorRange& in) {
    if (out.shares_memory_with(in))
        throw InvalidArgument(fmt::format("{}: out shares memory with in; expected separate memory", operation));
}

Sizes even(Caller caller, std::size_t size) { return Sizes(static_cast<std::size_t>(caller.size), size); }

/// Size of each tensor, in bytes or in elements.
Sizes sizes_of(Tensors list, bool bytes) {
    Sizes sizes;
    for (const Tensor& tensor : list)
        sizes.push_back(static_cast<std::size_t>(tensor.numel()) * (bytes ? size_of(tensor.dtype()) : 1));
    return sizes;
}

void require_one_dtype(std::string_view operation, Tensors list, const Tensor& other) {
    for (const Tensor& tensor : list) require_same_dtype(operation, tensor, other);
}

/// Converts rows of dimension 0 to bytes.
Sizes row_bytes(std::string_view operation, Caller caller, std::string_view name, const Tensor& tensor,
                std::span<const std::int64_t> rows) {
    if (rows.size() != static_cast<std::size_t>(caller.size))
        throw InvalidArgument(fmt::format("{}: {} numbers in {}_rows in a group of {}; expected one per rank",
                                          operation, rows.size(), name, caller.size));
    std::int64_t sum = 0;
    bool natural = true;
    for (const std::int64_t number : rows) {
        natural = natural && number >= 0 && number <= tensor.size(0) - sum;
        sum += natural ? number : 0;
    }
    if (!natural || sum != tensor.size(0))
        throw InvalidArgument(fmt::format("{}: {}_rows must not be negative and must sum up to the {} rows of {}",
                                          operation, name, tensor.size(0), name));
    std::size_t row = size_of(tensor.dtype());
    for (int dim = 1; dim < tensor.dims(); ++dim) row *= static_cast<std::size_t>(tensor.size(dim));
    Sizes sizes;
    for (const std::int64_t number : rows) sizes.push_back(static_cast<std::size_t>(number) * row);
    return sizes;
}

Collective exchange(TensorRange in, TensorRange out, Sizes sent, Sizes received, DType dtype) {
    require_no_overlap("all_to_all", out, in);
    return {
        std::move(in), std::move(out),
        [sent = std::move(sent), received = std::move(received), dtype](
            Communicator& group, const void* from, void* to) { group.all_to_all(from, sent, to, received, dtype); }};
}

Collective reduce_parts(TensorRange in, TensorRange out, Sizes counts, DType dtype, ReduceOp op) {
    require_no_overlap("reduce_scatter", out, in);
    return {std::move(in), std::move(out),
            [counts = std::move(counts), dtype, op](Communicator& group, const void* from, void* to) {
                group.reduce_scatter(from, to, counts, dtype, op);
            },
            true};
}

std::uint32_t checked_tag(std::string_view operation, int tag) {
    if (tag < 0) throw InvalidArgument(fmt::format("{}: tag {}; expected 0 or more", operation, tag));
    return static_cast<std::uint32_t>(tag);
}

void require_peer(std::string_view operation, Caller caller, int peer) {
    if (peer < 0 || peer >= caller.size || peer == caller.rank)
        throw InvalidArgument(
            fmt::format("{}: rank {} communicates with rank {} in a group of {}; expected another rank of the group",
                        operation, caller.rank, peer, caller.size));
}

}  // namespace

Collective all_reduce(Caller, const Tensor& tensor, ReduceOp op) {
    require_op("all_reduce", tensor, op);
    return {{},
            range("all_reduce", tensor, Use::update),
            [count = static_cast<std::size_t>(tensor.numel()), dtype = tensor.dtype(), op](
                Communicator& group, const void*, void* data) { group.all_reduce(data, count, dtype, op); },
            true};
}

Collective reduce(Caller caller, const Tensor& tensor, int root, ReduceOp op) {
    require_root("reduce", caller, root);
    require_op("reduce", tensor, op);
    return {{},
            range("reduce", tensor, Use::update),
            [count = static_cast<std::size_t>(tensor.numel()), dtype = tensor.dtype(), op, root](
                Communicator& group, const void*, void* data) { group.reduce(data, count, dtype, op, root); },
            true};
}

Collective broadcast(Caller caller, const Tensor& tensor, int root) {
    require_root("broadcast", caller, root);
    require_defined("broadcast", tensor);
    TensorRange all = range("broadcast", tensor, caller.rank == root ? Use::read : Use::write);
    // As on the other ranks, so that all of them refuse a backward that reads the tensor.
    if (caller.rank == root) tensor.impl()->storage->count_write();
    const std::size_t bytes = all.bytes();
    return {{}, std::move(all), [bytes, root, dtype = tensor.dtype()](Communicator& group, const void*, void* data) {
                group.broadcast(data, bytes, root, dtype);
            }};
}

Collective all_gather(Caller caller, const Tensor& out, const Tensor& in) {
    require_same_dtype("all_gather", out, in);
    require_whole("all_gather", caller, "out", out, in);
    TensorRange from = range("all_gather", in, Use::read), to = range("all_gather", out, Use::write);
    const std::size_t bytes = from.bytes();
    if (!from.is_part_of(to, static_cast<std::size_t>(caller.rank) * bytes)) require_no_overlap("all_gather", to, from);
    return {std::move(from), std::move(to),
            [sizes = even(caller, bytes), dtype = in.dtype()](Communicator& group, const void* part, void* whole) {
                group.all_gather(part, whole, sizes, dtype);
            }};
}

Collective all_gather(Caller caller, Tensors out, const Tensor& in) {
    require_one_a_rank("all_gather", caller, "out", out);
    require_one_dtype("all_gather", out, in);
    require_alike("all_gather", "out", out, caller.rank, in);
    TensorRange from = range("all_gather", in, Use::read), to("all_gather", out, Use::write);
    if (!from.is_part_of(to, 0)) require_no_overlap("all_gather", to, from);
    return {std::move(from), std::move(to),
            [sizes = sizes_of(out, true), dtype = in.dtype()](Communicator& group, const void* part, void* whole) {
                group.all_gather(part, whole, sizes, dtype);
            }};
}

Collective gather(Caller caller, const Tensor& in, Tensors out, int root) {
    require_root("gather", caller, root);
    require_defined("gather", in);
    if (caller.rank == root)
        require_all_alike("gather", caller, "out", out, in);
    else
        require_nothing("gather", caller, "out", out, root);
    TensorRange from = range("gather", in, Use::read), to("gather", out, Use::write);
    if (!from.is_part_of(to, 0)) require_no_overlap("gather", to, from);
    const std::size_t bytes = from.bytes();
    return {std::move(from), std::move(to),
            [sizes = even(caller, bytes), root, dtype = in.dtype()](
                Communicator& group, const void* part, void* whole) { group.gather(part, whole, sizes, root, dtype); }};
}

Collective scatter(Caller caller, const Tensor& out, Tensors in, int root) {
    require_root("scatter", caller, root);
    require_defined("scatter", out);
    if (caller.rank == root)
        require_all_alike("scatter", caller, "in", in, out);
    else
        require_nothing("scatter", caller, "in", in, root);
    TensorRange from("scatter", in, Use::read), to = range("scatter", out, Use::write);
    const std::size_t bytes = to.bytes();
    return {
        std::move(from), std::move(to),
        [sizes = even(caller, bytes), root, dtype = out.dtype()](Communicator& group, const void* whole, void* part) {
            group.scatter(whole, part, sizes, root, dtype);
        }};
}

Collective reduce_scatter(Caller caller, const Tensor& out, const Tensor& in, ReduceOp op) {
    require_same_dtype("reduce_scatter", out, in);
    require_op("reduce_scatter", in, op);
    require_whole("reduce_scatter", caller, "in", in, out);
    return reduce_parts(range("reduce_scatter", in, Use::read), range("reduce_scatter", out, Use::write),
                        even(caller, static_cast<std::size_t>(out.numel())), in.dtype(), op);
}

Collective reduce_scatter(Caller caller, const Tensor& out, Tensors in, ReduceOp op) {
    require_one_a_rank("reduce_scatter", caller, "in", in);
    require_one_dtype("reduce_scatter", in, out);
    require_op("reduce_scatter", out, op);
    require_alike("reduce_scatter", "in", in, caller.rank, out);
    return reduce_parts({"reduce_scatter", in, Use::read}, range("reduce_scatter", out, Use::write),
                        sizes_of(in, false), out.dtype(), op);
}

Collective all_to_all(Caller caller, const Tensor& out, const Tensor& in) {
    require_same_dtype("all_to_all", out, in);
    if (in.dims() == 0 || in.size(0) % caller.size != 0 || !(out.shape() == in.shape()))
        throw InvalidArgument(
            fmt::format("all_to_all: out is {}, in is {} in a group of {}; expected the same shape, with a first size "
                        "that is a multiple of the ranks, or explicit row counts",
                        text_of(out), text_of(in), caller.size));
    TensorRange from = range("all_to_all", in, Use::read), to = range("all_to_all", out, Use::write);
    const Sizes sizes = even(caller, from.bytes() / static_cast<std::size_t>(caller.size));
    return exchange(std::move(from), std::move(to), sizes, sizes, in.dtype());
}

Collective all_to_all(Caller caller, const Tensor& out, const Tensor& in, std::span<const std::int64_t> out_rows,
                      std::span<const std::int64_t> in_rows) {
    require_same_dtype("all_to_all", out, in);
    bool rows_alike = in.dims() > 0 && out.dims() == in.dims();
    for (int dim = 1; rows_alike && dim < in.dims(); ++dim) rows_alike = out.size(dim) == in.size(dim);
    if (!rows_alike)
        throw InvalidArgument(
            fmt::format("all_to_all: out is {}, in is {}; expected rows of the same shape", text_of(out), text_of(in)));
    Sizes sent = row_bytes("all_to_all", caller, "in", in, in_rows);
    Sizes received = row_bytes("all_to_all", caller, "out", out, out_rows);
    return exchange(range("all_to_all", in, Use::read), range("all_to_all", out, Use::write), std::move(sent),
                    std::move(received), in.dtype());
}

Collective all_to_all(Caller caller, Tensors out, Tensors in) {
    require_one_a_rank("all_to_all", caller, "in", in);
    require_one_a_rank("all_to_all", caller, "out", out);
    require_alike("all_to_all", "out", out, caller.rank, in[static_cast<std::size_t>(caller.rank)]);
    require_one_dtype("all_to_all", out, in[0]);
    require_one_dtype("all_to_all", in, in[0]);
    return exchange({"all_to_all", in, Use::read}, {"all_to_all", out, Use::write}, sizes_of(in, true),
                    sizes_of(out, true), in[0].dtype());
}

Collective barrier() {
    return {{}, {}, [](Communicator& group, const void*, void*) { group.barrier(); }};
}

MessageCall send(Caller caller, const Tensor& tensor, int to, int tag) {
    require_peer("send", caller, to);
    const std::uint32_t checked = checked_tag("send", tag);
    return {range("send", tensor, Use::read), true, to, checked};
}

MessageCall receive(Caller caller, const Tensor& tensor, int from, int tag) {
    if (from != Transport::any_source || caller.size == 1) require_peer("recv", caller, from);
    const std::uint32_t checked = checked_tag("recv", tag);
    return {range("recv", tensor, Use::write), false, from, checked};
}

}  // namespace lockstep::calls
