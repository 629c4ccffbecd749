#include "lockstep/parallel/engine/parameter_gradients.h"

#include <fmt/format.h>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

bool ParameterGradients::has(ParameterId parameter) const {
    const ParameterStore& store = *parts_.memory.store();
    return store.tensor(store.segment(parameter)).grad().defined();
}

bool ParameterGradients::is_in_arena(const Tensor& gradient, std::size_t arena) const {
    return gradient.impl()->storage->buffer->whole() == parts_.memory.replica(first_device).gradients[arena];
}

Tensor ParameterGradients::in_arena(ParameterId parameter) const {
    const ArenaSegment& segment = parts_.memory.store()->segment(parameter);
    const DType dtype = parts_.memory.layout(parameter.arena).dtype;
    const std::size_t size = size_of(dtype);
    std::shared_ptr<Buffer> part = Buffer::part(
        parts_.memory.replica(first_device).gradients[static_cast<std::size_t>(parameter.arena)],
        static_cast<std::size_t>(segment.begin) * size, static_cast<std::size_t>(segment.end - segment.begin) * size);
    return tensor_over(std::move(part), TensorMeta::contiguous(dtype, segment.shape));
}

void ParameterGradients::take_in() {
    given_ = true;
    ParameterStore& store = *parts_.memory.store();
    store.ensure_gradients(first_device);
    const NoGrad no_grad;
    for (std::size_t a = 0; a < store.parameters().size(); ++a)
        for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i) {
            const ArenaSegment& segment = store.parameters()[a].segments[i];
            const Tensor& parameter = store.tensor(segment);
            const Tensor gradient = parameter.grad();
            if (!gradient.defined() || is_in_arena(gradient, a)) continue;
            if (!(gradient.shape() == segment.shape))
                throw InvalidArgument(
                    fmt::format("the gradient of {} has shape {}, the parameter {}; expected the same shape",
                                segment.name, gradient.shape().str(), segment.shape.str()));
            const Tensor own = in_arena({static_cast<int>(a), static_cast<int>(i)});
            own.copy_(gradient);
            parameter.set_grad(own);
        }
    // The stream on which gradients are read and written.
    parts_.topology.commit(first_device).wait(Stream::of(parts_.topology.devices[0]));
}

void ParameterGradients::clear_missing(const std::set<ParameterId>& parameters) {
    for (const ParameterId parameter : parameters) {
        if (has(parameter)) continue;
        const Tensor own = in_arena(parameter);
        const Buffer& buffer = *own.impl()->storage->buffer;
        parts_.topology.commit(first_device).fill(buffer.data(), 0, buffer.bytes());
    }
}

void ParameterGradients::show(const std::set<ParameterId>& parameters) {
    const ParameterStore& store = *parts_.memory.store();
    for (const ParameterId parameter : parameters)
        if (!has(parameter)) store.tensor(store.segment(parameter)).set_grad(in_arena(parameter));
}

bool ParameterGradients::forget() {
    if (!given_) return false;
    given_ = false;
    const ParameterStore& store = *parts_.memory.store();
    for (const ArenaLayout& arena : store.parameters())
        for (const ArenaSegment& segment : arena.segments) {
            const Tensor& parameter = store.tensor(segment);
            if (parameter.grad().defined()) parameter.set_grad(Tensor());
        }
    return true;
}

}  // namespace lockstep
