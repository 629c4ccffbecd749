#include "lockstep/ops/internal/fusion_rules.h"

#include <utility>

#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

template <class Op>
const Op* as(const Record& record) {
    return op_cast<Op>(*record.operation);
}

/// ReLU of the result of another operation.
std::optional<Fused> fuse_activation(const Neighbours& n) {
    if (as<Unary<functor::Relu>>(n.later) == nullptr) return std::nullopt;
    const auto activated = [&](auto operation) -> std::optional<Fused> {
        if (operation.activation != Activation::none) return std::nullopt;
        operation.activation = Activation::relu;
        return Fused{make_operation(operation), n.earlier.in};
    };
    if (const auto* conv = as<Conv2dForward>(n.earlier)) return activated(*conv);
    if (const auto* linear = as<LinearForward>(n.earlier)) return activated(*linear);
    if (const auto* norm = as<BatchNormNormalize>(n.earlier)) return activated(*norm);
    return std::nullopt;
}

/// ReLU's gradient after the gradient of the following operation.
std::optional<Fused> fuse_gradient(const Neighbours& n) {
    if (as<UnaryBackward<functor::Relu>>(n.later) == nullptr) return std::nullopt;
    const Operand& activated = n.later.in[1];
    std::vector<Operand> in = n.earlier.in;
    if (const auto* conv = as<Conv2dBackwardData>(n.earlier)) {
        if (conv->made_x != Activation::none) return std::nullopt;
        in.push_back(activated);
        return Fused{make_operation(Conv2dBackwardData{conv->geometry, Activation::relu}), std::move(in)};
    }
    if (const auto* pool = as<MaxPool2dBackward>(n.earlier)) {
        if (pool->activation != Activation::none) return std::nullopt;
        // The element that the pooling selected from ReLU's result is positive exactly where the gradient passes ReLU.
        const Record* const pooling = n.maker(in[1]);
        if (!pooling || as<MaxPool2dForward>(*pooling) == nullptr || !same_memory(pooling->in[0], activated))
            return std::nullopt;
        if (n.maker(pooling->out[0]) != pooling) return std::nullopt;
        in.push_back(pooling->out[0]);
        return Fused{make_operation(MaxPool2dBackward{pool->geometry, Activation::relu}), std::move(in)};
    }
    return std::nullopt;
}

/// The gradient of a pooling, after the gradient of the ReLU that followed it.
std::optional<Fused> fuse_gradient_before_pool(const Neighbours& n) {
    const auto* const pool = as<MaxPool2dBackward>(n.later);
    if (pool == nullptr || pool->activation != Activation::none ||
        as<UnaryBackward<functor::Relu>>(n.earlier) == nullptr)
        return std::nullopt;
    return Fused{make_operation(MaxPool2dBackward{pool->geometry, Activation::relu}),
                 {n.earlier.in[0], n.later.in[1], n.earlier.in[1]}};
}

/// Two conversions of strided tensors, one of which changes the layout only.
std::optional<Fused> fuse_two_conversions(const Neighbours& n) {
    if (as<Reorder>(n.earlier) == nullptr || as<Reorder>(n.later) == nullptr) return std::nullopt;
    const TensorMeta &from = n.earlier.in[0].meta, &between = n.later.in[0].meta, &to = n.later.out[0].meta;
    if (from.opaque || between.opaque || to.opaque) return std::nullopt;
    if (from.dtype != between.dtype && between.dtype != to.dtype) return std::nullopt;
    return Fused{make_operation(Reorder{}), n.earlier.in};
}

/// A gradient of weights in 16 bits that is only converted to f32, for parameters in f32.
std::optional<Fused> fuse_conversion(const Neighbours& n) {
    const auto* weights = as<Conv2dBackwardWeights>(n.earlier);
    if (as<Reorder>(n.later) == nullptr || weights == nullptr || weights->widens) return std::nullopt;
    const TensorMeta &from = n.later.in[0].meta, &to = n.later.out[0].meta;
    if (!is_half_type(from.dtype) || to.dtype != DType::f32 || !to.is_contiguous()) return std::nullopt;
    return Fused{make_operation(Conv2dBackwardWeights{weights->geometry, true}), n.earlier.in};
}

/// ReLU's gradient before the gradient of the batch normalisation whose result it activated.
std::optional<Fused> absorb_in_norm(const Neighbours& n) {
    if (as<UnaryBackward<functor::Relu>>(n.earlier) == nullptr) return std::nullopt;
    const auto* sums = as<BatchNormBackwardSums>(n.later);
    const auto* data = as<BatchNormBackwardData>(n.later);
    if (sums == nullptr && data == nullptr) return std::nullopt;
    if ((sums ? sums->activation : data->activation) != Activation::none) return std::nullopt;
    const double eps = sums ? sums->eps : data->eps;
    std::vector<Operand> in = n.later.in;  // x, dy, stats; of data also weight and sums
    const Record* const normalize = n.maker(n.earlier.in[1]);
    if (normalize == nullptr || !same_memory(in[1], n.earlier.out[0])) return std::nullopt;
    const auto* forward = as<BatchNormNormalize>(*normalize);
    if (forward == nullptr || forward->activation != Activation::relu || forward->eps != eps) return std::nullopt;
    const Operand &weight = normalize->in[2], &bias = normalize->in[3];
    if (!same_memory(in[0], normalize->in[0]) || !same_memory(in[2], normalize->in[1])) return std::nullopt;
    in[1] = n.earlier.in[0];
    if (sums) {
        in.insert(in.end(), {weight, bias});
        return Fused{make_operation(BatchNormBackwardSums{eps, Activation::relu}), std::move(in)};
    }
    if (!same_memory(in[3], weight)) return std::nullopt;
    in.push_back(bias);
    return Fused{make_operation(BatchNormBackwardData{eps, Activation::relu}), std::move(in)};
}

}  // namespace

bool same_memory(const Operand& a, const Operand& b) {
    return a.buffer == b.buffer && a.meta.same_layout(b.meta) && a.meta.offset == b.meta.offset;
}

std::optional<Fused> fuse(const Neighbours& neighbours) {
    for (const auto rule :
         {fuse_activation, fuse_gradient, fuse_gradient_before_pool, fuse_conversion, fuse_two_conversions})
        if (auto fused = rule(neighbours)) return fused;
    return std::nullopt;
}

std::optional<Fused> absorb(const Neighbours& neighbours) { return absorb_in_norm(neighbours); }

}  // namespace lockstep
