// Functions that arrange the elements of tensors: exchanged and joined dimensions, turns, diagonals, grids.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// The tensors, with `dims` dimensions at least, joined along `dim`, or along 0 if they are vectors.
Tensor joined(const char* name, const std::vector<Tensor>& tensors, int dims, int dim) {
    if (tensors.empty())
        throw InvalidArgument(fmt::format("{}: an empty list of tensors; expected at least one", name));
    std::vector<Tensor> wide;
    for (const Tensor& tensor : tensors) {
        const CheckedArgs call(name, {arg::any("a tensor", tensor)});
        Tensor each = call[0];
        while (each.dims() < dims) each = each.unsqueeze(0);
        wide.push_back(each);
    }
    return cat(wide, std::min(dim, wide[0].dims() - 1));
}

void require_matrix(const char* name, const Tensor& x) { checks::dims(name, "the tensor", x, 2, "(M, N)"); }

}  // namespace

Tensor movedim(const Tensor& given, int source, int destination) {
    const CheckedArgs call("movedim", {arg::any("the tensor", given)});
    const int dims = call[0].dims(), from = wrap_dim(source, dims, "movedim"),
              to = wrap_dim(destination, dims, "movedim");
    std::vector<int> order;
    for (int dim = 0; dim < dims; ++dim)
        if (dim != from) order.push_back(dim);
    order.insert(order.begin() + to, from);
    return permute(call[0], order);
}

std::vector<Tensor> unbind(const Tensor& given, int dim) {
    const CheckedArgs call("unbind", {arg::any("the tensor", given)});
    const int along = wrap_dim(dim, call[0].dims(), "unbind");
    std::vector<Tensor> parts;
    for (std::int64_t i = 0; i < call[0].size(along); ++i) parts.push_back(call[0].select(along, i));
    return parts;
}

Tensor narrow(const Tensor& given, int dim, std::int64_t start, std::int64_t length) {
    const CheckedArgs call("narrow", {arg::any("the tensor", given)});
    const int along = wrap_dim(dim, call[0].dims(), "narrow");
    const std::int64_t size = call[0].size(along), first = start < 0 ? start + size : start;
    if (length < 0 || first < 0 || first > size || length > size - first)
        throw InvalidArgument(fmt::format("narrow: {} elements from {} of dimension {} of {}; expected elements of it",
                                          length, start, along, call[0].shape().str()));
    return call[0].slice(along, first, first + length);
}

Tensor unflatten(const Tensor& given, int dim, const Shape& sizes) {
    constexpr const char* name = "unflatten";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int along = wrap_dim(dim, x.dims(), name);
    std::int64_t known = 1;
    int open = 0;
    for (const std::int64_t size : sizes) {
        if (size == -1)
            ++open;
        else
            known *= size;
    }
    if (sizes.empty() || open > 1 || (open == 0 ? known != x.size(along) : known < 1 || x.size(along) % known != 0))
        throw InvalidArgument(
            fmt::format("{}: sizes {} of dimension {} of {}; expected sizes whose product is {}, at "
                        "most one of them -1",
                        name, sizes.str(), along, x.shape().str(), x.size(along)));
    Shape shape;
    for (int i = 0; i < along; ++i) shape.push_back(x.size(i));
    for (const std::int64_t size : sizes) shape.push_back(size == -1 ? x.size(along) / known : size);
    for (int i = along + 1; i < x.dims(); ++i) shape.push_back(x.size(i));
    return tagged(x.reshape(shape), x.is_batch() && (along > 0 || shape[0] == x.size(0)));
}

Tensor tile(const Tensor& given, const std::vector<std::int64_t>& repeats) {
    const CheckedArgs call("tile", {arg::any("the tensor", given)});
    std::vector<std::int64_t> all(repeats);
    while (std::ssize(all) < call[0].dims()) all.insert(all.begin(), 1);
    return repeat(call[0], all);
}

Tensor hstack(const std::vector<Tensor>& tensors) { return joined("hstack", tensors, 1, 1); }
Tensor vstack(const std::vector<Tensor>& tensors) { return joined("vstack", tensors, 2, 0); }

Tensor dstack(const std::vector<Tensor>& given) {
    std::vector<Tensor> tensors;
    for (const Tensor& one : given) {
        const CheckedArgs call("dstack", {arg::any("a tensor", one)});
        const Tensor rows = call[0].dims() == 0 ? call[0].reshape({1}) : call[0];
        const Tensor table = rows.dims() == 1 ? rows.unsqueeze(0) : rows;
        tensors.push_back(table.dims() == 2 ? table.unsqueeze(2) : table);
    }
    return joined("dstack", tensors, 3, 2);
}

Tensor fliplr(const Tensor& given) {
    const CheckedArgs call("fliplr", {arg::any("the tensor", given)});
    return flip(call[0], 1);
}

Tensor flipud(const Tensor& given) {
    const CheckedArgs call("flipud", {arg::any("the tensor", given)});
    return flip(call[0], 0);
}

Tensor rot90(const Tensor& given, int k, const std::vector<int>& dims) {
    const CheckedArgs call("rot90", {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    if (dims.size() != 2 || wrap_dim(dims[0], x.dims(), "rot90") == wrap_dim(dims[1], x.dims(), "rot90"))
        throw InvalidArgument("rot90: invalid dims; expected two different dimensions");
    switch ((k % 4 + 4) % 4) {
        case 1: return flip(x, dims[1]).transpose(dims[0], dims[1]);
        case 2: return flip(x, {dims[0], dims[1]});
        case 3: return flip(x, dims[0]).transpose(dims[0], dims[1]);
        default: return x.clone();
    }
}

Tensor diagonal(const Tensor& given, std::int64_t offset, int dim1, int dim2) {
    constexpr const char* name = "diagonal";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    const int first = wrap_dim(dim1, x.dims(), name), second = wrap_dim(dim2, x.dims(), name);
    if (first == second)
        throw InvalidArgument(fmt::format("{}: dimension {} is given twice; expected different ones", name, first));
    std::vector<int> order;
    Shape shape;
    for (int dim = 0; dim < x.dims(); ++dim)
        if (dim != first && dim != second) {
            order.push_back(dim);
            shape.push_back(x.size(dim));
        }
    order.insert(order.end(), {first, second});
    const std::int64_t rows = x.size(first), columns = x.size(second);
    shape.push_back(rows * columns);
    std::vector<std::int64_t> positions;
    for (std::int64_t row = std::max<std::int64_t>(-offset, 0); row < rows && row + offset < columns; ++row)
        positions.push_back(row * columns + row + offset);
    const Tensor index = Tensor::from(positions, {std::ssize(positions)}, x.device());
    return index_select(permute(x, order).reshape(shape), static_cast<int>(order.size()) - 2, index);
}

Tensor diag_embed(const Tensor& given, std::int64_t offset) {
    constexpr const char* name = "diag_embed";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const Tensor& x = call[0];
    if (x.dims() == 0)
        throw InvalidArgument(fmt::format("{}: the tensor is a scalar; expected at least one dimension", name));
    checks::not_rows(name, x, x.dims() - 1);
    // Row i + |offset| or column i + offset has element i.
    const std::int64_t size = x.size(-1) + std::abs(offset);
    const Tensor lines = pad(x, {0, std::abs(offset)}).unsqueeze(offset >= 0 ? -1 : -2);
    const auto numbers = [&](std::int64_t first) {
        return Tensor::arange(static_cast<double>(first), static_cast<double>(first + size), 1, DType::i64, x.device());
    };
    return tagged(masked_fill(lines, ne(numbers(offset).unsqueeze(1), numbers(0)), 0), x.is_batch() && x.dims() > 1);
}

Tensor diag(const Tensor& given, std::int64_t diagonal_of) {
    const CheckedArgs call("diag", {arg::any("the tensor", given)});
    if (call[0].dims() == 1) return diag_embed(call[0], diagonal_of);
    require_matrix("diag", call[0]);
    return diagonal(call[0], diagonal_of);
}

Tensor trace(const Tensor& given) {
    const CheckedArgs call("trace", {arg::number("the tensor", given)});
    require_matrix("trace", call[0]);
    return sum(diagonal(call[0]));
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& vectors, GridIndexing indexing) {
    Shape sizes;
    for (const Tensor& vector : vectors) {
        const CheckedArgs call("meshgrid", {arg::any("a tensor", vector)});
        if (call[0].dims() > 1)
            throw InvalidArgument(
                fmt::format("meshgrid: a tensor has the shape {}; expected vectors", call[0].shape().str()));
        if (!sizes.empty()) checks::not_rows("meshgrid", call[0], 0);
        sizes.push_back(call[0].numel());
    }
    std::vector<Tensor> grid;
    for (int dim = 0; dim < static_cast<int>(vectors.size()); ++dim) {
        Shape own;
        for (int other = 0; other < static_cast<int>(vectors.size()); ++other)
            own.push_back(other == dim ? sizes[dim] : 1);
        const Tensor all = vectors[static_cast<std::size_t>(dim)].reshape(own).expand(sizes);
        grid.push_back(indexing == GridIndexing::xy && vectors.size() > 1 ? all.transpose(0, 1) : all);
    }
    return grid;
}

Tensor cartesian_prod(const std::vector<Tensor>& vectors) {
    constexpr const char* name = "cartesian_prod";
    const CheckedArgs call(name, "a tensor", vectors, CheckedArgs::Dtypes::promoted);
    if (vectors.empty()) throw InvalidArgument(fmt::format("{}: an empty list; expected at least one vector", name));
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < vectors.size(); ++i) {
        checks::dims(name, "a tensor", call[i], 1, "a vector");
        checks::not_rows(name, call[i], 0);
        all.push_back(call[i]);
    }
    if (all.size() == 1) return all[0];
    std::vector<Tensor> columns;
    for (const Tensor& coordinate : meshgrid(all)) columns.push_back(coordinate.flatten().tag_batch(false));
    return stack(columns, 1);
}

Tensor block_diag(const std::vector<Tensor>& given) {
    constexpr const char* name = "block_diag";
    const CheckedArgs call(name, "a tensor", given, CheckedArgs::Dtypes::promoted);
    if (given.empty()) throw InvalidArgument(fmt::format("{}: an empty list; expected at least one matrix", name));
    std::vector<Tensor> blocks;
    std::int64_t columns = 0;
    for (std::size_t i = 0; i < given.size(); ++i) {
        const Tensor& block = call[i];
        if (block.dims() > 2)
            throw InvalidArgument(fmt::format("{}: a tensor has the shape {}; expected at most two dimensions", name,
                                              block.shape().str()));
        checks::not_rows(name, block, 0);
        blocks.push_back(block.dims() == 2 ? block : block.reshape({1, block.numel()}));
        columns += blocks.back().size(1);
    }
    std::vector<Tensor> lines;
    std::int64_t left = 0;
    for (const Tensor& block : blocks) {
        lines.push_back(pad(block, {left, columns - left - block.size(1)}).tag_batch(false));
        left += block.size(1);
    }
    return cat(lines);
}

namespace {

/// The indices (2, n) of the elements of a matrix for which `chosen(row, column)` holds.
template <class Chosen>
Tensor indices_of_triangle(const char* name, std::int64_t rows, std::int64_t columns, Device device,
                           const Chosen& chosen) {
    if (rows < 0 || columns < 0)
        throw InvalidArgument(fmt::format("{}: a matrix of {} x {}; expected sizes of 0 or more", name, rows, columns));
    std::vector<std::int64_t> all, of_columns;
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t column = 0; column < columns; ++column)
            if (chosen(row, column)) {
                all.push_back(row);
                of_columns.push_back(column);
            }
    const std::int64_t count = std::ssize(all);
    all.insert(all.end(), of_columns.begin(), of_columns.end());
    return Tensor::from(all, {2, count}, device);
}

}  // namespace

Tensor tril_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset, Device device) {
    return indices_of_triangle("tril_indices", rows, columns, device,
                               [=](std::int64_t row, std::int64_t column) { return column - row <= offset; });
}

Tensor triu_indices(std::int64_t rows, std::int64_t columns, std::int64_t offset, Device device) {
    return indices_of_triangle("triu_indices", rows, columns, device,
                               [=](std::int64_t row, std::int64_t column) { return column - row >= offset; });
}

Tensor movedim(const Tensor& given, const std::vector<int>& source, const std::vector<int>& destination) {
    constexpr const char* name = "movedim";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const int dims = call[0].dims();
    std::vector<int> order(static_cast<std::size_t>(dims), -1);
    std::vector<bool> moved(static_cast<std::size_t>(dims), false);
    bool fits = source.size() == destination.size();
    for (std::size_t i = 0; fits && i < source.size(); ++i) {
        const int from = wrap_dim(source[i], dims, name), to = wrap_dim(destination[i], dims, name);
        fits = !moved[static_cast<std::size_t>(from)] && order[static_cast<std::size_t>(to)] == -1;
        moved[static_cast<std::size_t>(from)] = true;
        order[static_cast<std::size_t>(to)] = from;
    }
    if (!fits)
        throw InvalidArgument(
            fmt::format("{}: invalid dimensions; expected as many destinations as sources, each of them once", name));
    int next = 0;
    for (int& from : order) {
        if (from != -1) continue;
        while (moved[static_cast<std::size_t>(next)]) ++next;
        from = next++;
    }
    return permute(call[0], order);
}

Tensor swapaxes(const Tensor& given, int dim0, int dim1) {
    const CheckedArgs call("swapaxes", {arg::any("the tensor", given)});
    return call[0].transpose(dim0, dim1);
}

Tensor atleast_1d(const Tensor& given) {
    const CheckedArgs call("atleast_1d", {arg::any("the tensor", given)});
    return call[0].dims() == 0 ? call[0].reshape({1}) : call[0];
}

Tensor atleast_2d(const Tensor& given) {
    const CheckedArgs call("atleast_2d", {arg::any("the tensor", given)});
    const Tensor x = atleast_1d(call[0]);
    return x.dims() == 1 ? x.unsqueeze(0) : x;
}

Tensor atleast_3d(const Tensor& given) {
    const CheckedArgs call("atleast_3d", {arg::any("the tensor", given)});
    const Tensor x = atleast_2d(call[0]);
    return x.dims() == 2 ? x.unsqueeze(2) : x;
}

Tensor broadcast_to(const Tensor& given, const Shape& shape) {
    const CheckedArgs call("broadcast_to", {arg::any("the tensor", given)});
    return call[0].expand(shape);
}

std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& tensors) {
    constexpr const char* name = "broadcast_tensors";
    Shape shape;
    for (const Tensor& tensor : tensors) {
        const CheckedArgs call(name, {arg::any("a tensor", tensor)});
        shape = broadcast_shapes(shape, call[0].shape(), name);
    }
    std::vector<Tensor> all;
    for (const Tensor& tensor : tensors) all.push_back(tensor.expand(shape));
    return all;
}

Tensor column_stack(const std::vector<Tensor>& given) {
    std::vector<Tensor> tensors;
    for (const Tensor& one : given) {
        const CheckedArgs call("column_stack", {arg::any("a tensor", one)});
        const Tensor& x = call[0];
        tensors.push_back(x.dims() < 2 ? tagged(x.reshape({x.numel(), 1}), x.is_batch()) : x);
    }
    return joined("column_stack", tensors, 2, 1);
}

Tensor roll(const Tensor& given, const std::vector<std::int64_t>& shifts, const Dims& dims) {
    const CheckedArgs call("roll", {arg::any("the tensor", given)});
    if (shifts.empty() || shifts.size() != dims.list().size())
        throw InvalidArgument(
            fmt::format("roll: {} shifts for {} dimensions; expected one for each", shifts.size(), dims.list().size()));
    Tensor x = call[0];
    for (std::size_t i = 0; i < shifts.size(); ++i) x = roll(x, shifts[i], dims.list()[i]);
    return x;
}

}  // namespace lockstep
