#include "lockstep/parallel/engine/program_cache.h"

#include <algorithm>

#include "lockstep/parallel/program/trace_check.h"
#include "lockstep/runtime/internal/environment.h"

namespace lockstep {

namespace {

TensorMeta with_rows(const TensorMeta& input, std::int64_t rows) {
    Shape shape = input.shape;
    shape[0] = rows;
    return TensorMeta::contiguous(input.dtype, shape, true);
}

bool lies_in_store(const ParameterStore& store, const Storage& storage) {
    const auto& whole = storage.buffer->whole();
    for (const auto* arenas : {&store.replicas().front().parameters, &store.replicas().front().buffers})
        for (const auto& arena : *arenas)
            if (whole && arena == whole) return true;
    return false;
}

/// Constants that `programs` read outside the model's arenas, each once.
std::vector<std::shared_ptr<Storage>> constants_of(const ParameterStore& store,
                                                   const std::vector<const ShardProgram*>& programs) {
    std::vector<std::shared_ptr<Storage>> found;
    for (const ShardProgram* program : programs)
        for (const auto& storage : program->outside)
            if (!lies_in_store(store, *storage) && std::find(found.begin(), found.end(), storage) == found.end())
                found.push_back(storage);
    return found;
}

UpdatePlan plan_of(Optimizer* optimizer, GradientSync sync, const GateRules& gate) {
    return {.optimizer = optimizer, .accumulate = !optimizer, .sync = sync, .gate = gate};
}

bool checks_traces() {
    static const bool checks = environment::flag("LOCKSTEP_CHECK_TRACE");
    return checks;
}

}  // namespace

void ProgramCache::describe(const ProgramCall& call, bool micro_step, Signature& text) const {
    text.add(std::string_view(call.key.text.bytes()))
        .add(call.key.training)
        .add(call.pass)
        .add(micro_step)
        .add(std::string_view(context_.store->trainable_flags()));
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
        text.add(with_rows(call.inputs[i], 1)).add(static_cast<bool>(call.wants_gradient[i]));
}

ShardProgram ProgramCache::trace(const ProgramCall& call, std::int64_t rows, bool micro_step) const {
    ShardProgramRequest request;
    request.prototype = context_.devices[0];
    request.threads = context_.threads;
    request.deterministic = context_.deterministic;
    request.convolution = context_.convolution;
    request.shards = context_.shards;
    request.pass = call.pass;
    request.nan_policy = nan_policy_;
    request.micro_step = micro_step;
    for (const TensorMeta& input : call.inputs) request.inputs.push_back(with_rows(input, rows));
    request.input_wants_gradient = call.wants_gradient;
    request.store = context_.store.get();
    return trace_shard(request, call.model);
}

std::shared_ptr<const ShardProgram> ProgramCache::shard_program(const ProgramCall& call, std::int64_t rows,
                                                                bool micro_step) {
    Signature own;
    describe(call, micro_step, own);
    own.add(rows);
    if (const auto* kept = shard_programs_.find(own.bytes())) return *kept;
    ++traces_;
    auto traced = std::make_shared<ShardProgram>(trace(call, rows, micro_step));
    if (call.key.keep) traced->keep = call.key.keep();
    // A placed program has two of them at most, micro-steps three. Those that are dropped here live on in their placed
    // programs.
    shard_programs_.make_room(3 * context_.kept_programs, [](const auto&) { return true; });
    return shard_programs_.add(own.bytes(), std::move(traced));
}

std::shared_ptr<BatchProgram> ProgramCache::batch_program(const ProgramCall& call, const BatchCut& cut,
                                                          bool micro_step) {
    auto batch = std::make_shared<BatchProgram>();
    batch->cut = cut;
    batch->held = context_.held.among(cut.end);
    batch->pass = call.pass;
    batch->full = shard_program(call, cut.rows_of(cut.first_shard), micro_step);
    batch->last = shard_program(call, cut.rows_of(cut.end - 1), micro_step);
    if (batch->uneven()) require_matching_spans(*batch->full, *batch->last);
    return batch;
}

ProgramCache::Placed ProgramCache::with_constants(const std::vector<std::shared_ptr<const BatchProgram>>& parts,
                                                  const Optimizer* optimizer) {
    std::vector<const ShardProgram*> programs;
    for (const auto& part : parts)
        for (const auto& program : {part->full, part->last}) {
            programs.push_back(program.get());
            if (program->weighing) programs.push_back(program->weighing.get());
        }
    make_room();
    Placed fresh;
    fresh.optimizer = optimizer ? optimizer->id() : 0;
    fresh.constants = constants_of(*context_.store, programs);
    refresh_constants(fresh);
    return fresh;
}

void ProgramCache::refresh_constants(const Placed& placed) {
    for (const auto& storage : placed.constants) constants_.refresh(context_, storage);
}

ProgramCache::Placed ProgramCache::place(const ProgramCall& call, std::span<const BatchCut> cuts, bool in_micro_steps,
                                         Optimizer* optimizer) {
    std::vector<std::shared_ptr<BatchProgram>> parts;
    for (const BatchCut& cut : cuts) parts.push_back(batch_program(call, cut, in_micro_steps));
    Placed fresh = with_constants({parts.begin(), parts.end()}, optimizer);
    if (in_micro_steps)
        fresh.micro_steps = std::make_unique<MicroSteps>(context_, constants_, parts, *optimizer, call.gate,
                                                         nan_policy_ == NanPolicy::stop);
    else
        fresh.program = std::make_unique<PlacedProgram>(context_, constants_, std::move(parts[0]),
                                                        plan_of(optimizer, call.sync, call.gate));
    return fresh;
}

void ProgramCache::require_unchanged(const ProgramCall& call, const BatchProgram& batch, bool micro_step) const {
    require_same_trace(*batch.full, trace(call, batch.cut.rows_of(batch.cut.first_shard), micro_step));
    if (batch.uneven()) require_same_trace(*batch.last, trace(call, batch.cut.rows_of(batch.cut.end - 1), micro_step));
}

void ProgramCache::begin_key(const ProgramCall& call, const BatchCut& first, bool micro_step) {
    key_.clear();
    describe(call, micro_step, key_);
    // The rows of the first micro-step tell how the others are cut.
    key_.add(first.rows).add(first.chunk).add(first.base_row).add(first.first_shard);
}

void ProgramCache::add_to_key(GradientSync sync, const Optimizer* optimizer, const GateRules& gate) {
    // Programs keep the optimizer's memory in their tasks.
    key_.add(sync).add(optimizer ? optimizer->id() : 0);
    if (optimizer) key_.add(std::string_view(optimizer->program_key()));
    gate.describe(key_);
}

ProgramCache::Placed& ProgramCache::kept(const ProgramCall& call, std::span<const BatchCut> cuts, bool in_micro_steps,
                                         Optimizer* optimizer) {
    begin_key(call, cuts[0], in_micro_steps);
    add_to_key(call.sync, optimizer, call.gate);
    Placed* placed = placed_.find(key_.bytes());
    if (!placed) return placed_.add(key_.bytes(), place(call, cuts, in_micro_steps, optimizer));
    if (checks_traces() && placed->program) require_unchanged(call, placed->program->batch(), false);
    if (checks_traces() && placed->micro_steps)
        for (const auto& part : placed->micro_steps->parts()) require_unchanged(call, *part, true);
    refresh_constants(*placed);
    return *placed;
}

const TracedBatch& ProgramCache::traced(const ProgramCall& call, const BatchCut& cut) {
    begin_key(call, cut, false);
    if (const TracedBatch* found = traced_.find(key_.bytes())) {
        if (checks_traces()) require_unchanged(call, *found->batch, false);
        return *found;
    }
    auto batch = batch_program(call, cut, false);
    traced_.make_room(context_.kept_programs, [](const auto&) { return true; });
    const UsedParameters used(context_, *batch);
    return traced_.add(key_.bytes(), {std::move(batch), used});
}

PlacedProgram& ProgramCache::placed(const std::shared_ptr<const BatchProgram>& batch, GradientSync sync,
                                    Optimizer* optimizer, const UsedParameters* used, const GateRules& gate) {
    key_.clear();
    key_.add(reinterpret_cast<std::uintptr_t>(batch.get()));  // which the program keeps
    if (used) key_.add(used->bytes());
    add_to_key(sync, optimizer, gate);
    if (Placed* found = placed_.find(key_.bytes())) {
        refresh_constants(*found);
        return *found->program;
    }
    Placed fresh = with_constants({batch}, optimizer);
    fresh.program = std::make_unique<PlacedProgram>(context_, constants_, batch, plan_of(optimizer, sync, gate), used);
    return *placed_.add(key_.bytes(), std::move(fresh)).program;
}

void ProgramCache::make_room() {
    const auto idle = [](const Placed& placed) { return !placed.program || !placed.program->in_use(); };
    const auto orphaned = [&](const Placed& placed) {
        return placed.optimizer != 0 && !context_.store->has_optimizer(placed.optimizer) && idle(placed);
    };
    if (!placed_.full(context_.kept_programs) && !placed_.any_of(orphaned)) return;
    in_flight_.drain();  // the devices may be running what goes
    placed_.drop_if(orphaned);
    placed_.make_room(context_.kept_programs, idle);
    constants_.keep_only([&](const Storage& constant) {
        return placed_.any_of([&](const Placed& placed) {
            return std::any_of(placed.constants.begin(), placed.constants.end(),
                               [&](const auto& storage) { return storage.get() == &constant; });
        });
    });
}

}  // namespace lockstep
