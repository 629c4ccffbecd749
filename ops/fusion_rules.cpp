#include "lockstep/ops/internal/fusion_rules.h"

#include <utility>

#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/unary_functions.h"

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

}  // namespace

bool same_memory(const Operand& a, const Operand& b) {
    return a.buffer == b.buffer && a.meta.same_layout(b.meta) && a.meta.offset == b.meta.offset;
}

std::optional<Fused> fuse(const Neighbours& neighbours) {
    for (const auto rule : {fuse_activation, fuse_gradient, fuse_gradient_before_pool})
        if (auto fused = rule(neighbours)) return fused;
    return std::nullopt;
}

}  // namespace lockstep
