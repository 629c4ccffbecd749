// Functions that make, cut, repeat and rearrange tensors, made of views and selections.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Elements along `dim` in the order of `indices`.
Tensor reordered(const Tensor& x, int dim, const std::vector<std::int64_t>& indices) {
    return index_select(x, dim, Tensor::from(indices, {static_cast<std::int64_t>(indices.size())}, x.device()));
}

std::vector<Tensor> cut(const char* name, const Tensor& x, const std::vector<std::int64_t>& sizes, int dim) {
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) {
        if (size < 0)
            throw InvalidArgument(fmt::format("{}: a size is negative ({}); expected sizes of at least 0", name, size));
        total += size;
    }
    if (total != x.size(dim))
        throw InvalidArgument(fmt::format("{}: the sizes add up to {}; expected {}, the size of dimension {} of {}",
                                          name, total, x.size(dim), dim, x.shape().str()));
    std::vector<Tensor> parts;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
        parts.push_back(x.slice(dim, begin, begin + size));
        begin += size;
    }
    return parts;
}

/// Parts of `size`, the last one with the rest; at least one.
std::vector<std::int64_t> equal_sizes(std::int64_t total, std::int64_t size) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t begin = 0; begin < total; begin += size) sizes.push_back(std::min(size, total - begin));
    if (sizes.empty()) sizes.push_back(0);
    return sizes;
}

/// x where column - row is in [from, to], 0 elsewhere.
Tensor band(const char* name, const Tensor& given, std::int64_t diagonal, bool lower) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    if (x.dims() < 2)
        throw InvalidArgument(
            fmt::format("{}: the tensor {} is not a matrix; expected at least two dimensions", name, x.shape().str()));
    const auto numbers = [&](std::int64_t count, std::int64_t first, const Shape& shape) {
        std::vector<std::int64_t> values(static_cast<std::size_t>(count));
        std::iota(values.begin(), values.end(), first);
        return Tensor::from(values, shape, x.device());
    };
    const std::int64_t rows = x.size(-2), columns = x.size(-1);
    const Tensor row = numbers(rows, diagonal, {rows, 1}), column = numbers(columns, 0, {1, columns});
    return masked_fill(x, lower ? column > row : column < row, 0);
}

int dim_of(const char* name, const Tensor& x, int dim) {
    if (x.dims() == 0)
        throw InvalidArgument(fmt::format("{}: the tensor is a scalar; expected at least one dimension", name));
    return wrap_dim(dim, x.dims(), name);
}

void require_images(const char* name, const Tensor& x, int factor) {
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    if (factor < 1)
        throw InvalidArgument(fmt::format("{}: invalid factor ({}); expected a positive number", name, factor));
}

}  // namespace

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
    if (tensors.empty()) throw InvalidArgument("stack: an empty list of tensors; expected at least one");
    const CheckedArgs call("stack", {arg::any("a tensor", tensors[0])});
    const int at = wrap_dim(dim, call[0].dims() + 1, "stack");
    std::vector<Tensor> wide;
    for (const Tensor& tensor : tensors) {
        const CheckedArgs each("stack", {arg::any("a tensor", tensor)});
        if (!(each[0].shape() == tensors[0].shape()))
            throw InvalidArgument(fmt::format("stack: tensors of shapes {} and {}; expected equal shapes",
                                              tensors[0].shape().str(), tensor.shape().str()));
        wide.push_back(each[0].unsqueeze(at));
    }
    return cat(wide, at);
}

Tensor pad_sequence(const std::vector<Tensor>& given, bool batch_first, double padding_value) {
    constexpr const char* name = "pad_sequence";
    if (given.empty()) throw InvalidArgument(fmt::format("{}: an empty list of tensors; expected at least one", name));
    const CheckedArgs call(name, "a tensor", given, CheckedArgs::Dtypes::promoted);
    std::int64_t longest = 0;
    for (const Tensor& sequence : call.tensors()) {
        Shape shape = sequence.shape();
        if (shape.dims() > 0) shape[0] = call[0].size(0);
        if (shape.dims() == 0 || !(shape == call[0].shape()))
            throw InvalidArgument(fmt::format(
                "{}: tensors of shapes {} and {}; expected at least one dimension, and sizes that differ in "
                "the first one only",
                name, call[0].shape().str(), sequence.shape().str()));
        checks::not_rows(name, sequence, 0);
        longest = std::max(longest, sequence.size(0));
    }
    std::vector<Tensor> rows;
    for (const Tensor& sequence : call.tensors()) {
        std::vector<std::int64_t> amounts(static_cast<std::size_t>(2 * sequence.dims()), 0);
        amounts.back() = longest - sequence.size(0);
        rows.push_back(pad(sequence, amounts, padding_value));
    }
    return tagged(stack(rows, batch_first ? 0 : 1), false);
}

std::vector<Tensor> split(const Tensor& given, std::int64_t size, int dim) {
    const CheckedArgs call("split", {arg::any("the tensor", given)});
    const int along = dim_of("split", call[0], dim);
    if (size < 1) throw InvalidArgument(fmt::format("split: invalid size ({}); expected a positive number", size));
    return cut("split", call[0], equal_sizes(call[0].size(along), size), along);
}

std::vector<Tensor> split(const Tensor& given, const std::vector<std::int64_t>& sizes, int dim) {
    const CheckedArgs call("split", {arg::any("the tensor", given)});
    return cut("split", call[0], sizes, dim_of("split", call[0], dim));
}

std::vector<Tensor> tensor_split(const Tensor& given, int sections, int dim) {
    constexpr const char* name = "tensor_split";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const int along = dim_of(name, call[0], dim);
    if (sections < 1)
        throw InvalidArgument(fmt::format("{}: invalid sections ({}); expected a positive number", name, sections));
    const std::int64_t total = call[0].size(along);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(sections), total / sections);
    for (std::int64_t i = 0; i < total % sections; ++i) ++sizes[static_cast<std::size_t>(i)];
    return cut(name, call[0], sizes, along);
}

std::vector<Tensor> tensor_split(const Tensor& given, const std::vector<std::int64_t>& indices, int dim) {
    constexpr const char* name = "tensor_split";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = dim_of(name, x, dim);
    std::vector<Tensor> parts;
    std::int64_t begin = 0;
    for (const std::int64_t end : indices) {
        parts.push_back(x.slice(along, begin, end));
        begin = end;
    }
    parts.push_back(x.slice(along, begin));
    return parts;
}

std::vector<Tensor> chunk(const Tensor& given, int chunks, int dim) {
    const CheckedArgs call("chunk", {arg::any("the tensor", given)});
    const int along = dim_of("chunk", call[0], dim);
    if (chunks < 1)
        throw InvalidArgument(fmt::format("chunk: invalid chunks ({}); expected a positive number", chunks));
    const std::int64_t total = call[0].size(along);
    if (total == 0) return cut("chunk", call[0], std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0), along);
    return cut("chunk", call[0], equal_sizes(total, (total + chunks - 1) / chunks), along);
}

Tensor full_like(const Tensor& given, double value) {
    const CheckedArgs call("full_like", {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    return Tensor::full(x.shape(), value, x.dtype(), x.device()).tag_batch(x.is_batch());
}

Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
Tensor ones_like(const Tensor& x) { return full_like(x, 1); }

Tensor flip(const Tensor& given, const Dims& dims) {
    const CheckedArgs call("flip", {arg::any("the tensor", given)});
    Tensor y = call[0];
    std::vector<int> seen;
    for (const int dim : dims.list()) {
        const int along = dim_of("flip", y, dim);
        if (std::find(seen.begin(), seen.end(), along) != seen.end())
            throw InvalidArgument(
                fmt::format("flip: dimension {} is given twice; expected different dimensions", along));
        seen.push_back(along);
        std::vector<std::int64_t> indices(static_cast<std::size_t>(y.size(along)));
        std::iota(indices.rbegin(), indices.rend(), 0);
        y = reordered(y, along, indices);
    }
    return y;
}

Tensor roll(const Tensor& given, std::int64_t shift, int dim) {
    const CheckedArgs call("roll", {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = dim_of("roll", x, dim);
    const std::int64_t size = x.size(along);
    std::vector<std::int64_t> indices(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i)
        indices[static_cast<std::size_t>(i)] = ((i - shift % size) % size + size) % size;
    return reordered(x, along, indices);
}

Tensor repeat(const Tensor& given, const std::vector<std::int64_t>& repeats) {
    const CheckedArgs call("repeat", {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const auto dims = static_cast<int>(repeats.size());
    if (dims < x.dims())
        throw InvalidArgument(
            fmt::format("repeat: {} repeats for {}; expected at least one for each dimension", dims, x.shape().str()));
    Shape shape;
    for (int d = 0; d < dims - x.dims(); ++d) shape.push_back(1);
    for (int d = 0; d < x.dims(); ++d) shape.push_back(x.size(d));
    Tensor y = dims == x.dims() ? x : x.reshape(shape);
    for (int d = 0; d < dims; ++d) {
        const std::int64_t times = repeats[static_cast<std::size_t>(d)];
        if (times < 0)
            throw InvalidArgument(fmt::format("repeat: a negative number ({}); expected numbers of at least 0", times));
        if (times == 1) continue;
        std::vector<std::int64_t> indices;
        for (std::int64_t i = 0; i < times; ++i)
            for (std::int64_t j = 0; j < y.size(d); ++j) indices.push_back(j);
        y = reordered(y, d, indices);
    }
    return y;
}

Tensor repeat_interleave(const Tensor& given, std::int64_t repeats, int dim) {
    const CheckedArgs call("repeat_interleave", {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = dim_of("repeat_interleave", x, dim);
    if (repeats < 0)
        throw InvalidArgument(
            fmt::format("repeat_interleave: invalid repeats ({}); expected a number of at least 0", repeats));
    std::vector<std::int64_t> indices;
    for (std::int64_t j = 0; j < x.size(along); ++j)
        indices.insert(indices.end(), static_cast<std::size_t>(repeats), j);
    return reordered(x, along, indices);
}

Tensor tril(const Tensor& x, std::int64_t diagonal) { return band("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return band("triu", x, diagonal, false); }

Tensor channel_shuffle(const Tensor& given, int groups) {
    constexpr const char* name = "channel_shuffle";
    const CheckedArgs call(name, {arg::any("input", given)});
    const Tensor& x = call[0];
    if (x.dims() < 3 || groups < 1 || x.size(1) % groups != 0)
        throw InvalidArgument(
            fmt::format("{}: {} groups of the channels of input {}; expected (N, C, L, ...), and a "
                        "number that divides C",
                        name, groups, x.shape().str()));
    Shape parts{x.size(0), groups, x.size(1) / groups};
    for (int dim = 2; dim < x.dims(); ++dim) parts.push_back(x.size(dim));
    return tagged(x.reshape(parts).transpose(1, 2).reshape(x.shape()), x.is_batch());
}

Tensor pixel_shuffle(const Tensor& given, int upscale_factor) {
    constexpr const char* name = "pixel_shuffle";
    const CheckedArgs call(name, {arg::any("input", given)});
    const Tensor& x = call[0];
    require_images(name, x, upscale_factor);
    const std::int64_t r = upscale_factor, n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
    if (c % (r * r) != 0)
        throw InvalidArgument(
            fmt::format("{}: input {} has {} channels; expected a multiple of {}", name, x.shape().str(), c, r * r));
    const Tensor parts = permute(x.reshape({n, c / (r * r), r, r, h, w}), {0, 1, 4, 2, 5, 3});
    return tagged(parts.reshape({n, c / (r * r), h * r, w * r}), x.is_batch());
}

Tensor pixel_unshuffle(const Tensor& given, int downscale_factor) {
    constexpr const char* name = "pixel_unshuffle";
    const CheckedArgs call(name, {arg::any("input", given)});
    const Tensor& x = call[0];
    require_images(name, x, downscale_factor);
    const std::int64_t r = downscale_factor, n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
    if (h % r != 0 || w % r != 0)
        throw InvalidArgument(fmt::format("{}: the size of input {} is not divisible by {}; expected multiples", name,
                                          x.shape().str(), r));
    const Tensor parts = permute(x.reshape({n, c, h / r, r, w / r, r}), {0, 1, 3, 5, 2, 4});
    return tagged(parts.reshape({n, c * r * r, h / r, w / r}), x.is_batch());
}

}  // namespace lockstep
