// Assembly of schedules: one recipe for each kind of program. Each returns the number of commands of forward; the
// others are backward, reduction and update.
#pragma once

#include <cstddef>

#include "lockstep/parallel/schedule/schedule_builder.h"

namespace lockstep {

/// Forward without autograd.
std::size_t emit_inference(ScheduleBuilder& builder);
/// Forward that changes running statistics.
std::size_t emit_training_forward(ScheduleBuilder& builder);
/// Forward that changes running statistics, and backward from given gradients of the outputs: PyTorch's manual step
/// without its update.
std::size_t emit_forward_and_backward(ScheduleBuilder& builder);
/// Forward, loss, backward, update.
std::size_t emit_step(ScheduleBuilder& builder);
/// One microbatch of a step; the last one agrees on the status, updates and commits.
std::size_t emit_microbatch(ScheduleBuilder& builder, const Microbatch& part);
/// The denominators of the loss of one microbatch, added to those of the earlier ones.
std::size_t emit_denominators(ScheduleBuilder& builder, const Microbatch& part);

}  // namespace lockstep
