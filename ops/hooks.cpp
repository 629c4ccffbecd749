// Backward hooks: two operations that change nothing, around a layer, whose gradients are those of its input and
// output.
#include "lockstep/ops/hooks.h"

#include <fmt/format.h>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

namespace {

/// `other` if it is defined, otherwise `gradient`, whose shape and dtype it must have.
Tensor replacement(const char* hook, const Tensor& gradient, const Tensor& other) {
    if (!other.defined()) return gradient;
    if (!gradient.defined())
        throw InvalidArgument(fmt::format(
            "Hooked: a {} returned a gradient of shape {}, but the input of the layer requires none; expected nothing",
            hook, other.shape().str()));
    if (!(other.shape() == gradient.shape()) || other.dtype() != gradient.dtype())
        throw InvalidArgument(fmt::format("Hooked: a {} returned a gradient {} of {}; expected {} of {}", hook,
                                          other.shape().str(), name_of(other.dtype()), gradient.shape().str(),
                                          name_of(gradient.dtype())));
    return other;
}

/// The same memory, with a separate node of the graph.
template <class Backward>
Tensor watched(const char* name, const Tensor& x, Backward backward) {
    const Tensor y = x.detach();
    add_autograd_node(name, {x}, {y}, BackwardFunction::composed(std::move(backward)));
    return y;
}

}  // namespace

struct BackwardHooks::Call {
    std::vector<std::shared_ptr<const Before>> before;
    std::vector<std::shared_ptr<const After>> after;
    bool has_input = false;  ///< whether the gradient of the input is computed
    Tensor grad_output;      ///< until that of the input is known

    Tensor began(const Tensor& gradient) {
        Tensor changed = gradient;
        for (const auto& hook : before) changed = replacement("full backward pre-hook", changed, (*hook)(changed));
        if (has_input)
            grad_output = changed;
        else
            ended({}, changed);
        return changed;
    }
    Tensor ended(const Tensor& gradient, const Tensor& of_output) const {
        Tensor changed = gradient;
        for (const auto& hook : after)
            changed = replacement("full backward hook", changed, (*hook)(changed, of_output));
        return changed;
    }
};

BackwardHooks::BackwardHooks(std::vector<std::shared_ptr<const Before>> before,
                             std::vector<std::shared_ptr<const After>> after)
    : call_(std::make_shared<Call>(Call{std::move(before), std::move(after), false, {}})) {}

Tensor BackwardHooks::input(const Tensor& x) {
    if (!needs_autograd({x})) return x;
    call_->has_input = true;
    return watched("register_full_backward_hook", x, [call = call_](const std::vector<Tensor>& gradients) {
        const Tensor of_output = std::exchange(call->grad_output, Tensor());
        return std::vector<Tensor>{call->ended(gradients[0], of_output)};
    });
}

Tensor BackwardHooks::output(const Tensor& y) {
    if (!needs_autograd({y})) return y;
    return watched("register_full_backward_hook", y, [call = call_](const std::vector<Tensor>& gradients) {
        return std::vector<Tensor>{call->began(gradients[0])};
    });
}

}  // namespace lockstep::detail
