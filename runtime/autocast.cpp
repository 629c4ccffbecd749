#include "lockstep/runtime/autocast.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

struct Autocast::State {
    struct Kept {
        Tensor leaf, converted;
        std::uint64_t version;
        bool with_gradient;
    };
    std::optional<DType> dtype;
    std::vector<Kept> kept;
    State* outer;
};

Autocast::State*& Autocast::current() {
    thread_local State* state = nullptr;
    return state;
}

Autocast::Autocast(std::optional<DType> dtype) {
    if (dtype && !is_half_type(*dtype))
        throw InvalidArgument(
            fmt::format("Autocast: dtype {} is not a 16-bit float; expected DType::f16, DType::bf16 or std::nullopt",
                        name_of(*dtype)));
    state_ = std::make_unique<State>(State{dtype, {}, current()});
    current() = state_.get();
}

Autocast::~Autocast() { current() = state_->outer; }

std::optional<DType> Autocast::dtype() { return dtype_or({}); }

std::optional<DType> Autocast::dtype_or(std::optional<DType> otherwise) {
    return current() != nullptr ? current()->dtype : otherwise;
}

Tensor Autocast::cast(const Tensor& tensor, DType dtype) {
    if (tensor.dtype() == dtype) return tensor;
    State* const state = current();
    if (state == nullptr || !tensor.is_leaf() || !tensor.requires_grad()) return tensor.to(dtype);
    const auto convert = [&] {
        const Tensor converted = tensor.to(dtype);
        // Several graphs share this node: the backward pass of one must leave it intact for the others.
        if (converted.impl()->node) converted.impl()->node->repeatable = true;
        return State::Kept{tensor, converted, tensor.version(), grad_enabled()};
    };
    for (State::Kept& kept : state->kept)
        if (kept.leaf.impl() == tensor.impl() && kept.converted.dtype() == dtype &&
            kept.with_gradient == grad_enabled()) {
            if (kept.version != tensor.version()) kept = convert();
            return kept.converted;
        }
    state->kept.push_back(convert());
    return state->kept.back().converted;
}

}  // namespace lockstep
