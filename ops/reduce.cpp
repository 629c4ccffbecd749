#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// `shape` with the marked dimensions 1, or without them.
Shape reduced_shape(const Shape& shape, std::uint32_t bits, bool keep) {
    Shape result;
    for (int i = 0; i < shape.dims(); ++i) {
        const bool reduced = (bits >> i & 1u) != 0;
        if (!reduced)
            result.push_back(shape[i]);
        else if (keep)
            result.push_back(1);
    }
    return result;
}

/// Sum with the dimensions kept, without autograd.
Tensor kept_sum(const Tensor& x, std::uint32_t bits) {
    const bool batch = x.is_batch() && (bits & 1u) == 0;
    return apply_one(Sum{bits}, {x}, shaped(x, reduced_shape(x.shape(), bits, true), batch));
}

Tensor sum_bits(const Tensor& x, std::uint32_t bits, bool keepdim) {
    if (bits == 0) return x;
    const Tensor sums = kept_sum(x, bits);
    if (needs_autograd({x}))
        add_autograd_node("sum", {x}, {sums},
                          BackwardFunction::composed([origin = x.shape(), batch = x.is_batch()](const auto& gradients) {
                              return std::vector<Tensor>{tagged(gradients[0].expand(origin), batch)};
                          }));
    if (keepdim) return sums;
    const Tensor y = sums.reshape(reduced_shape(x.shape(), bits, false));
    const bool batch = x.is_batch() && (bits & 1u) == 0;
    return tagged(y, batch);
}

}  // namespace

Tensor reduce_to(const Tensor& x, const Shape& shape) {
    if (x.shape() == shape) return x;
    const int shift = x.dims() - shape.dims();
    std::uint32_t bits = 0;
    for (int i = 0; i < x.dims(); ++i)
        if (i < shift || (shape[i - shift] == 1 && x.size(i) != 1)) bits |= 1u << i;
    return sum_bits(x, bits, true).reshape(shape);
}

Tensor sum(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("sum", {arg::any("the tensor", given)});
    const Tensor x = is_floating(call[0].dtype()) ? call[0] : call[0].to(DType::i64);
    return sum_bits(x, checks::dim_bits("sum", x, dims.list()), keepdim);
}

Tensor mean(const Tensor& given, const Dims& dims, bool keepdim) {
    const CheckedArgs call("mean", {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    const std::uint32_t bits = checks::dim_bits("mean", x, dims.list());
    std::int64_t count = 1;
    for (int i = 0; i < x.dims(); ++i)
        if (bits >> i & 1u) count *= x.size(i);
    const double share = 1.0 / static_cast<double>(count);
    // The sum may exceed the largest number of f16 even if the mean is small.
    if (x.dtype() == DType::f16) return (sum_bits(widened(x), bits, keepdim) * share).to(x.dtype());
    return sum_bits(x, bits, keepdim) * share;
}

Tensor argmax(const Tensor& given, std::optional<int> dim, bool keepdim) {
    const CheckedArgs call("argmax", {arg::any("the tensor", given)});
    const Tensor x = is_floating(call[0].dtype()) ? call[0].detach() : call[0].to(DType::i64);
    const Tensor source = dim ? x : x.reshape({x.numel()});
    const int along = dim ? wrap_dim(*dim, x.dims(), "argmax") : 0;
    if (source.dims() == 0) return Tensor::zeros({}, DType::i64, x.device());
    if (source.size(along) == 0)
        throw InvalidArgument(
            fmt::format("argmax: dimension {} of {} is empty; expected at least one element", along, x.shape().str()));
    const std::uint32_t bit = 1u << along;
    const bool batch = dim && x.is_batch() && along != 0;
    const TensorMeta meta = TensorMeta::contiguous(DType::i64, reduced_shape(source.shape(), bit, true), batch);
    const Tensor kept = apply_one(ArgMax{along}, {source}, meta);
    if (!dim) {
        Shape shape;
        if (keepdim)
            for (int i = 0; i < x.dims(); ++i) shape.push_back(1);
        return kept.reshape(shape);
    }
    if (keepdim) return kept;
    const Tensor y = kept.reshape(reduced_shape(source.shape(), bit, false));
    return tagged(y, batch);
}

std::vector<Tensor> sum_over_shards(const std::vector<Tensor>& given) {
    const CheckedArgs call("sum_over_shards", "a tensor", given, CheckedArgs::Dtypes::floating);
    const TensorList tensors = call.tensors();
    if (tensors.empty()) throw InvalidArgument("sum_over_shards: an empty list of tensors; expected at least one");
    std::vector<Output> outputs;
    std::vector<bool> wanted, batch;
    for (const Tensor& tensor : tensors) {
        outputs.emplace_back(shaped(tensor, tensor.shape()));
        wanted.push_back(tensor.requires_grad());
        batch.push_back(tensor.is_batch());
    }
    const std::vector<Tensor> sums = apply(make_operation(SumOverShards{}), tensors, outputs);
    if (needs_autograd(tensors))
        add_autograd_node("sum_over_shards", tensors, sums,
                          BackwardFunction::composed([wanted, batch](const auto& gradients) {
                              // All shards have the same autograd graph, so each of them has the same defined
                              // gradients.
                              std::vector<Tensor> result(gradients.size());
                              std::vector<Tensor> come;
                              for (std::size_t i = 0; i < gradients.size(); ++i)
                                  if (wanted[i] && gradients[i].defined()) come.push_back(gradients[i]);
                              if (come.empty()) return result;
                              const std::vector<Tensor> added = sum_over_shards(come);
                              std::size_t next = 0;
                              for (std::size_t i = 0; i < gradients.size(); ++i)
                                  if (wanted[i] && gradients[i].defined()) result[i] = tagged(added[next++], batch[i]);
                              return result;
                          }));
    return sums;
}

Tensor sum_over_shards(const Tensor& x) { return sum_over_shards(std::vector<Tensor>{x})[0]; }

}  // namespace lockstep
