// Positions of numbers in sorted sequences.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// The number of elements of each line that are before a value. One bit of it at a time, from the highest.
Tensor positions(const Tensor& lines, const Tensor& values, bool right) {
    const std::int64_t size = lines.size(-1);
    const bool one_line = lines.dims() == 1;
    const auto element = [&](const Tensor& index) {
        if (!one_line) return gather(lines, -1, index);
        return index_select(lines, 0, index.reshape({index.numel()})).reshape(index.shape());
    };
    Tensor position = tagged(Tensor::zeros(values.shape(), DType::i64, values.device()), values.is_batch());
    std::int64_t bit = 1;
    while (2 * bit <= size) bit *= 2;
    for (; bit > 0 && size > 0; bit /= 2) {
        const Tensor next = position + bit;
        const Tensor probe = element(minimum(next, full_like(next, static_cast<double>(size))) - 1);
        // NaN is after all numbers.
        const Tensor before = logical_not(right ? probe > values : probe >= values);
        position = where(logical_and(next <= size, before), next, position);
    }
    return position;
}

}  // namespace

Tensor searchsorted(const Tensor& given_sequence, const Tensor& given_values, bool right) {
    constexpr const char* name = "searchsorted";
    const CheckedArgs call(name,
                           {arg::promoted("sorted_sequence", given_sequence), arg::promoted("values", given_values)});
    const Tensor sequence = call[0].detach(), values = call[1].detach();
    bool fits = sequence.dims() == 1 || (sequence.dims() > 1 && sequence.dims() == values.dims());
    for (int dim = 0; fits && dim + 1 < sequence.dims(); ++dim) fits = sequence.size(dim) == values.size(dim);
    if (!fits)
        throw InvalidArgument(
            fmt::format("{}: sorted_sequence {} and values {}; expected a vector, or sizes that differ in the last "
                        "dimension only",
                        name, sequence.shape().str(), values.shape().str()));
    if (sequence.dims() == 1) checks::not_rows(name, sequence, 0);
    return positions(sequence, values, right);
}

Tensor bucketize(const Tensor& given, const Tensor& given_boundaries, bool right) {
    constexpr const char* name = "bucketize";
    const CheckedArgs call(name, {arg::promoted("input", given), arg::promoted("boundaries", given_boundaries)});
    checks::dims(name, "boundaries", call[1], 1, "(B)");
    checks::not_rows(name, call[1], 0);
    return positions(call[1].detach(), call[0].detach(), right);
}

Tensor isin(const Tensor& given, const Tensor& given_tests, bool invert) {
    constexpr const char* name = "isin";
    const CheckedArgs call(name, {arg::promoted("elements", given), arg::promoted("test_elements", given_tests)});
    const Tensor x = call[0].detach(), tests = call[1].detach();
    if (tests.dims() > 0) checks::not_rows(name, tests, 0);
    if (tests.numel() == 0) return eq(zeros_like(x), invert ? 0 : 1);
    Tensor ordered = sort(tests.flatten(), 0).values;
    // NaN is equal to nothing, and is not in order: the smallest element replaces it.
    if (is_floating(ordered.dtype())) ordered = sort(where(isnan(ordered), ordered.slice(0, 0, 1), ordered), 0).values;
    const Tensor at = clamp(positions(ordered, x, false), 0, tests.numel() - 1);
    const Tensor found = index_select(ordered, 0, at.flatten()).reshape(x.shape());
    return tagged(invert ? ne(found, x) : eq(found, x), x.is_batch());
}

Tensor take(const Tensor& given, const Tensor& given_index) {
    constexpr const char* name = "take";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("index", given_index)});
    const Tensor &x = call[0], &index = call[1];
    if (x.dims() > 0) checks::not_rows(name, x, 0);
    return tagged(index_select(x.flatten(), 0, index.flatten()).reshape(index.shape()), index.is_batch());
}

Tensor index_put(const Tensor& given, const std::vector<Tensor>& given_index, const Tensor& given_values,
                 bool accumulate) {
    constexpr const char* name = "index_put";
    const CheckedArgs call(name, {accumulate ? arg::number("the tensor", given) : arg::any("the tensor", given),
                                  accumulate ? arg::number("values", given_values) : arg::any("values", given_values)});
    const CheckedArgs of_index(name, "an index", given_index, CheckedArgs::Dtypes::promoted);
    const Tensor& x = call[0];
    if (call[1].dtype() != x.dtype())
        throw InvalidArgument(fmt::format("{}: values have dtype {}; expected {} like the tensor (use .to(dtype))",
                                          name, name_of(call[1].dtype()), name_of(x.dtype())));
    const auto count = static_cast<int>(given_index.size());
    if (count == 0 || count > x.dims())
        throw InvalidArgument(fmt::format("{}: {} indices for the tensor {}; expected one to {}", name, count,
                                          x.shape().str(), x.dims()));
    for (const Tensor& tensor : {x, call[1]})
        if (tensor.dims() > 0) checks::not_rows(name, tensor, 0);
    Shape shape;
    for (const Tensor& index : given_index) {
        if (index.dtype() != DType::i64)
            throw InvalidArgument(
                fmt::format("{}: index {} has dtype {}; expected i64 (use .to(DType::i64), or where "
                            "for a mask)",
                            name, index.shape().str(), name_of(index.dtype())));
        if (index.dims() > 0) checks::not_rows(name, index, 0);
        shape = broadcast_shapes(shape, index.shape(), name);
    }
    // The number of the line of x that has the first dimensions; the selection checks each index.
    Tensor line = Tensor::zeros(shape, DType::i64, x.device());
    std::int64_t lines = 1, per_line = 1;
    for (int d = 0; d < count; ++d) {
        const std::int64_t size = x.size(d);
        const Tensor numbers = Tensor::arange(0, static_cast<double>(size), 1, DType::i64, x.device());
        const Tensor& index = of_index[static_cast<std::size_t>(d)];
        line = line * size + index_select(numbers, 0, index.flatten()).reshape(index.shape());
        lines *= size;
    }
    Shape of_values = shape;
    for (int d = count; d < x.dims(); ++d) {
        of_values.push_back(x.size(d));
        per_line *= x.size(d);
    }
    if (!(broadcast_shapes(of_values, call[1].shape(), name) == of_values))
        throw InvalidArgument(
            fmt::format("{}: values {} cannot be broadcast to {}, the shape of the indices with the "
                        "other dimensions of the tensor {}",
                        name, call[1].shape().str(), of_values.str(), x.shape().str()));
    if (of_values.numel() == 0) return x.clone();
    const Shape flat{shape.numel(), per_line};
    const Tensor rows = x.reshape({lines, per_line}), values = call[1].expand(of_values).reshape(flat);
    const Tensor index = line.reshape({shape.numel(), 1}).expand(flat);
    const Tensor y = accumulate ? scatter_add(rows, 0, index, values) : scatter(rows, 0, index, values);
    return y.reshape(x.shape()).tag_batch(false);
}

Tensor masked_scatter(const Tensor& given, const Tensor& given_mask, const Tensor& given_source) {
    constexpr const char* name = "masked_scatter";
    const CheckedArgs call(
        name, {arg::any("the tensor", given), arg::any("mask", given_mask), arg::any("source", given_source)});
    const Tensor& source = call[2];
    if (call[1].dtype() != DType::boolean)
        throw InvalidArgument(fmt::format("{}: mask has dtype {}; expected bool", name, name_of(call[1].dtype())));
    if (source.dtype() != call[0].dtype())
        throw InvalidArgument(fmt::format("{}: source has dtype {}; expected {} like the tensor (use .to(dtype))", name,
                                          name_of(source.dtype()), name_of(call[0].dtype())));
    const Shape shape = broadcast_shapes(call[0].shape(), call[1].shape(), name);
    const Tensor x = call[0].expand(shape), mask = call[1].expand(shape);
    for (const Tensor& tensor : {x, mask, source})
        if (tensor.dims() > 0) checks::not_rows(name, tensor, 0);
    // The number of the element among those of the mask; others read the first one.
    const Tensor number = cumsum(mask.flatten(), 0) - 1;
    const Tensor taken = index_select(source.flatten(), 0, where(mask.flatten(), number, 0)).reshape(shape);
    return tagged(where(mask, taken, x), x.is_batch() || mask.is_batch());
}

}  // namespace lockstep
