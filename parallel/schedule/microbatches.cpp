#include "lockstep/parallel/schedule/microbatches.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/parallel/schedule/recipes.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

using Batches = std::vector<std::shared_ptr<const BatchProgram>>;

std::vector<DType> denominator_dtypes(const ShardProgram& program) {
    std::vector<DType> dtypes;
    for (const Operand& denominator : program.denominators) dtypes.push_back(denominator.meta.dtype);
    return dtypes;
}

void require_alike(const Batches& parts) {
    const ShardProgram& one = *parts[0]->full;
    const auto fail = [&](const ShardProgram& other, const char* what) {
        throw InvalidArgument(
            fmt::format("shards of input shapes {} and {}, of two microbatches, {}; forward and loss must not depend "
                        "on the length of the shard",
                        one.inputs.front().meta.shape.str(), other.inputs.front().meta.shape.str(), what));
    };
    for (const auto& part : parts)
        for (const ShardProgram* other : {part->full.get(), part->last.get()}) {
            if (denominator_dtypes(*other) != denominator_dtypes(one))
                fail(*other, "have losses of different denominators");
            if (other->delivered() != one.delivered()) fail(*other, "compute gradients of different parameters");
        }
}

/// The program that computes the denominators of `part`.
std::shared_ptr<const BatchProgram> denominator_batch(const BatchProgram& part) {
    auto denominators = std::make_shared<BatchProgram>();
    denominators->cut = part.cut;
    denominators->held = part.held;
    denominators->full = part.full->denominator_program;
    denominators->last = part.last->denominator_program;
    if (denominators->uneven()) require_matching_spans(*denominators->full, *denominators->last);
    return denominators;
}

}  // namespace

Microbatches::Microbatches(const Topology& topology, EngineMemory& memory, const ConstantCache& constants,
                           const Batches& parts, const StrategyOf& strategy_of, bool checks_loss)
    : topology_(topology), parts_(parts) {
    require_alike(parts);
    const ShardProgram& one = *parts[0]->full;
    carry_ = std::make_shared<const MicrobatchCarry>(topology, memory, denominator_dtypes(one), one.loss.meta.dtype,
                                                     checks_loss);
    const auto add = [&](const std::shared_ptr<const BatchProgram>& batch, std::size_t number, auto recipe) {
        const Microbatch part{carry_, number == 0, number + 1 == parts.size(), parts[0]->cut.present};
        programs_.push_back(
            std::make_unique<ScheduledProgram>(topology, memory, constants, batch, strategy_of(*batch, part),
                                               [&](ScheduleBuilder& builder) { return recipe(builder, part); }));
        in_order_.push_back(programs_.back().get());
    };
    for (std::size_t i = 0; one.denominator_program && i < parts.size(); ++i)
        add(denominator_batch(*parts[i]), i, emit_denominators);
    for (std::size_t i = 0; i < parts.size(); ++i) add(parts[i], i, emit_microbatch);
}

void Microbatches::prepare() {
    if (!instances_.empty()) return;
    std::vector<std::shared_ptr<Buffer>> workspaces;
    workspaces.resize(static_cast<std::size_t>(parts_[0]->held.first));  // null for shards of other processes
    for (int shard = parts_[0]->held.first; shard < parts_[0]->held.last; ++shard) {
        std::size_t bytes = 0;
        for (const auto& program : programs_)
            if (program->batch().held.contains(shard))
                bytes = std::max(bytes, program->memory().workspace_bytes(shard));
        workspaces.push_back(Buffer::allocate(topology_.compute(shard), bytes, "activations"));
    }
    std::vector<std::shared_ptr<Instance>> instances;
    for (const auto& program : programs_) instances.push_back(program->instance_in(workspaces));
    instances_ = std::move(instances);
}

void Microbatches::release_memory() { instances_.clear(); }

void Microbatches::enqueue(const Scatter& scatter, Phase phase, StepRecorder* recorder) {
    for (std::size_t i = 0; i < programs_.size(); ++i) {
        ScheduledProgram& program = *programs_[i];
        if (phase == Phase::work) scatter(program, *instances_[i]);
        program.enqueue_forward(*instances_[i], phase, recorder);
        program.enqueue_backward(*instances_[i], phase, recorder);
    }
}

}  // namespace lockstep
