// Sorting along a dimension.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/sorting_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// The first `count` elements in order, and their positions.
ValuesAndIndices ordered(const char* name, const Tensor& given, int dim, bool descending,
                         std::optional<std::int64_t> count) {
    const CheckedArgs call(name, {arg::any("the tensor", given)});
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
    const Tensor keys = is_floating(x.dtype()) ? widened(x.detach()) : x.to(DType::i64);
    const TensorMeta order = TensorMeta::contiguous(DType::i64, x.shape(), x.is_batch());
    Tensor indices;
    if (count)
        indices = apply_one(ArgTop{along, descending, *count}, {keys}, order).slice(along, 0, *count).contiguous();
    else
        indices = apply_one(ArgSort{along, descending}, {keys}, order);
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
