#include "lockstep/parallel/schedule/micro_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

std::vector<DType> weights_of(const ShardProgram& program) {
    std::vector<DType> dtypes;
    for (const Operand& weight : program.weights) dtypes.push_back(weight.meta.dtype);
    return dtypes;
}

std::set<std::pair<int, int>> delivered_by(const ShardProgram& program) {
    std::set<std::pair<int, int>> places;
    for (const Delivery& delivery : program.deliveries) places.emplace(delivery.arena, delivery.segment);
    return places;
}

void require_alike(const std::vector<std::shared_ptr<BatchProgram>>& parts) {
    const ShardProgram& one = *parts[0]->full;
    const auto fail = [&](const ShardProgram& other, const char* what) {
        throw InvalidArgument(fmt::format(
            "shards of input shapes {} and {}, of two micro-steps, {}; forward and loss must not depend on the length "
            "of the shard there",
            one.inputs.front().meta.shape.str(), other.inputs.front().meta.shape.str(), what));
    };
    for (const auto& part : parts)
        for (const ShardProgram* other : {part->full.get(), part->last.get()}) {
            if (weights_of(*other) != weights_of(one)) fail(*other, "have losses of different weights");
            if (delivered_by(*other) != delivered_by(one)) fail(*other, "give gradients to different parameters");
        }
}

/// The program that weighs for `part`.
std::shared_ptr<BatchProgram> weighing_of(const BatchProgram& part) {
    auto weighing = std::make_shared<BatchProgram>();
    weighing->cut = part.cut;
    weighing->held = part.held;
    weighing->full = part.full->weighing;
    weighing->last = part.last->weighing;
    weighing->micro.weighs = true;
    if (weighing->uneven()) require_matching_spans(*weighing->full, *weighing->last);
    return weighing;
}

}  // namespace

MicroSteps::MicroSteps(EngineContext& context, const ConstantCache& constants,
                       const std::vector<std::shared_ptr<BatchProgram>>& parts, Optimizer& optimizer,
                       const GateRules& gate, bool checks_loss)
    : context_(context), parts_(parts) {
    require_alike(parts);
    const ShardProgram& one = *parts[0]->full;
    carry_ = std::make_shared<const MicroCarry>(context, weights_of(one), one.loss.meta.dtype, checks_loss);
    std::vector<std::shared_ptr<BatchProgram>> all;
    if (parts[0]->full->weighing)
        for (const auto& part : parts) all.push_back(weighing_of(*part));
    all.insert(all.end(), parts.begin(), parts.end());
    for (const auto& part : all) {
        const auto number = static_cast<std::size_t>(&part - all.data()) % parts.size();
        part->micro.carry = carry_;
        part->micro.first = number == 0;
        part->micro.last = number + 1 == parts.size();
        part->micro.present = parts[0]->cut.present;
        const UpdatePlan update{.optimizer = part->micro.weighs ? nullptr : &optimizer,
                                .adds = !part->micro.first,
                                .update = part->micro.last,
                                .gate = gate};
        programs_.push_back(std::make_unique<PlacedProgram>(context, constants, part, update));
        in_order_.push_back(programs_.back().get());
    }
}

void MicroSteps::prepare() {
    if (!instances_.empty()) return;
    std::vector<std::shared_ptr<Buffer>> workspaces;
    for (int shard = 0; shard < parts_[0]->cut.present; ++shard) {
        std::size_t bytes = 0;
        for (const auto& program : programs_)
            if (shard < program->batch().cut.present) bytes = std::max(bytes, program->memory().workspace_bytes(shard));
        workspaces.push_back(Buffer::allocate(context_.compute(context_.lane_of(shard)), bytes, "activations"));
    }
    for (const auto& program : programs_) instances_.push_back(program->instance_in(workspaces));
}

void MicroSteps::enqueue(const BatchInputs& inputs, Phase phase) {
    for (std::size_t i = 0; i < programs_.size(); ++i) {
        PlacedProgram& program = *programs_[i];
        if (phase == Phase::work) inputs.scatter(program, *instances_[i]);
        program.enqueue_forward(*instances_[i], phase);
        program.enqueue_backward(*instances_[i], phase);
    }
}

}  // namespace lockstep
