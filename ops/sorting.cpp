// Sorting along a dimension by a bitonic network: about log2(n)^2 / 2 passes over the tensor, made of comparisons and
// choices, so that it runs on every kind of device and within traced programs.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// number(0), number(1), ... up to `count` (i64) along a dimension, broadcasting to tensors with `dims` dimensions.
template <class Number>
Tensor along_dim(std::int64_t count, int dim, int dims, Device device, Number number) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = number(i);
    Shape shape;
    for (int d = 0; d < dims; ++d) shape.push_back(d == dim ? count : 1);
    return Tensor::from(values, shape).to(device);
}

/// Positions (i64) in the order of the elements along `dim`, equal ones in the order of their positions; NaN is larger
/// than every number. The network sorts pairs of a key and a position, which are all different.
Tensor positions(const Tensor& x, int dim, bool descending) {
    const std::int64_t size = x.size(dim);
    std::int64_t width = 1;
    while (width < size) width *= 2;
    const auto numbers = [&](auto number) { return along_dim(width, dim, x.dims(), x.device(), number); };

    // Keys in ascending order. Positions beyond those of the same key distinguish NaN from infinity, and what fills the
    // tensor up to a power of two from both.
    constexpr double most = std::numeric_limits<double>::infinity();
    const Tensor is_nan = ne(x, x), first = numbers([](std::int64_t i) { return i; }) < size;
    const std::int64_t of_nan = descending ? -width : width;
    std::vector<std::int64_t> ends(static_cast<std::size_t>(2 * (x.dims() - dim)), 0);
    ends.back() = width - size;
    Tensor keys = pad(where(is_nan, most, x), ends, most);
    if (descending) keys = where(first, neg(keys), most);
    const auto whole = [&](std::int64_t value) {
        return Tensor::full({}, static_cast<double>(value), DType::i64, x.device());
    };
    Tensor places = numbers([&](std::int64_t i) { return i < size ? i : i + 2 * width; }) +
                    pad(where(is_nan, whole(of_nan), whole(0)), ends);

    // For every bit of a position: the positions that differ in it, and those in which it is 0.
    std::vector<Tensor> partners, zeros;
    for (std::int64_t bit = 1; bit <= width; bit *= 2) {
        partners.push_back(along_dim(width, 0, 1, x.device(), [bit](std::int64_t i) { return i ^ bit; }));
        zeros.push_back(eq(numbers([bit](std::int64_t i) { return i & bit; }), 0));
    }
    for (std::size_t block = 1; block < zeros.size(); ++block)
        for (std::size_t bit = block; bit-- > 0;) {
            const Tensor other_keys = index_select(keys, dim, partners[bit]);
            const Tensor other_places = index_select(places, dim, partners[bit]);
            const Tensor before =
                logical_or(keys < other_keys, logical_and(eq(keys, other_keys), places < other_places));
            // Blocks are sorted in alternate directions; the last one, the whole, in ascending order.
            const Tensor keeps = eq(before, eq(zeros[bit], zeros[block]));
            keys = where(keeps, keys, other_keys);
            places = where(keeps, places, other_places);
        }
    places = places.slice(dim, 0, size);
    return where(places < 0, places + width, where(places >= width, places - width, places)).contiguous();
}

/// The first `count` elements in order, and their positions.
ValuesAndIndices ordered(const char* name, const Tensor& given, int dim, bool descending,
                         std::optional<std::int64_t> count) {
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    const int along = wrap_dim(dim, std::max(x.dims(), 1), name);
    const std::int64_t size = x.dims() == 0 ? 1 : x.size(along);
    if (count && (*count < 0 || *count > size))
        throw InvalidArgument(fmt::format("{}: invalid k ({}); expected 0 to {}, the size of dimension {} of {}", name,
                                          *count, size, along, x.shape().str()));
    if (x.dims() == 0) return {x.clone(), Tensor::zeros({}, DType::i64, x.device())};
    if (Trace::current() && x.is_batch() && along == 0)
        throw InvalidArgument(
            fmt::format("{}: dimension 0 of a batch cannot be sorted, because a shard has only some of "
                        "its rows; expected another dimension",
                        name));
    if (x.numel() == 0) {
        const Tensor values = x.slice(along, 0, count.value_or(size)).clone();
        return {values, Tensor::zeros(values.shape(), DType::i64, x.device())};
    }
    Tensor indices = positions(widened(x.detach()), along, descending);
    if (count) indices = indices.slice(along, 0, *count).contiguous();
    indices = tagged(indices, x.is_batch() && along != 0);
    return {gather(x, along, indices), indices};
}

}  // namespace

ValuesAndIndices sort(const Tensor& x, int dim, bool descending) {
    return ordered("sort", x, dim, descending, std::nullopt);
}

Tensor argsort(const Tensor& x, int dim, bool descending) {
    return ordered("argsort", x.detach(), dim, descending, std::nullopt).indices;
}

ValuesAndIndices topk(const Tensor& x, std::int64_t k, int dim, bool largest) {
    return ordered("topk", x, dim, largest, k);
}

}  // namespace lockstep
