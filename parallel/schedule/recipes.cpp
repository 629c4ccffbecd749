#include "lockstep/parallel/schedule/recipes.h"

#include <optional>

namespace lockstep {

std::size_t emit_inference(ScheduleBuilder& builder) {
    builder.emit_forward();
    builder.emit_barrier(builder.draws_numbers() ? std::optional(Counted::inference) : std::nullopt);
    return builder.emitter().schedule().size();
}

std::size_t emit_training_forward(ScheduleBuilder& builder) {
    builder.emit_forward();
    builder.emit_agreement();
    if (builder.has_commits()) builder.emit_commits();
    builder.emit_barrier(Counted::microbatch);
    return builder.emitter().schedule().size();
}

std::size_t emit_forward_and_backward(ScheduleBuilder& builder) {
    const std::size_t forward_end = emit_training_forward(builder);
    builder.emit_backward();
    builder.emit_barrier(std::nullopt);
    return forward_end;
}

std::size_t emit_step(ScheduleBuilder& builder) {
    builder.emit_forward();
    builder.emit_agreement();
    builder.emit_loss();
    const std::size_t forward_end = builder.emitter().schedule().size();
    builder.emit_backward();
    builder.emit_squares();
    // Nothing waits for buffers: after an exception in a kernel of backward, or a skipped step, they are unchanged.
    if (builder.has_commits()) builder.emit_commits();
    builder.emit_end_of_step();
    return forward_end;
}

std::size_t emit_microbatch(ScheduleBuilder& builder, const Microbatch& part) {
    builder.begin_microbatch(part);
    builder.emit_forward();
    builder.emit_loss_so_far();
    if (builder.has_commits()) builder.emit_preparations();
    if (part.last) {
        builder.emit_agreement(part.present);
        builder.emit_loss();
    }
    const std::size_t forward_end = builder.emitter().schedule().size();
    builder.emit_backward();
    builder.emit_squares();
    if (!part.last) {
        builder.emit_end_of_microbatch();
        return forward_end;
    }
    if (builder.has_commits()) builder.emit_prepared_commits();
    builder.emit_barrier(Counted::step);
    return forward_end;
}

std::size_t emit_denominators(ScheduleBuilder& builder, const Microbatch& part) {
    builder.begin_microbatch(part);
    builder.emit_forward();
    builder.emit_denominators();
    builder.emit_end_of_microbatch();
    return builder.emitter().schedule().size();
}

}  // namespace lockstep
