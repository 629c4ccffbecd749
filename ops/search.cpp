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

}  // namespace lockstep
