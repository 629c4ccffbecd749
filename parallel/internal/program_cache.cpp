#include "lockstep/parallel/internal/program_cache.h"

#include <algorithm>

#include "lockstep/parallel/internal/trace_check.h"
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

}  // namespace

ShardProgram ProgramCache::trace(Pass pass, std::int64_t rows, const std::vector<TensorMeta>& inputs,
                                 const std::vector<bool>& wants_gradient, const ModelFunction& model) const {
    ShardProgramRequest request;
    request.prototype = context_.devices[0];
    request.threads = context_.threads;
    request.deterministic = context_.deterministic;
    request.shards = context_.shards;
    request.pass = pass;
    request.nan_policy = nan_policy_;
    for (const TensorMeta& input : inputs) request.inputs.push_back(with_rows(input, rows));
    request.input_wants_gradient = wants_gradient;
    request.store = context_.store.get();
    return trace_shard(request, model);
}

std::shared_ptr<const ShardProgram> ProgramCache::shard_program(const Signature& text, const ProgramKey& key, Pass pass,
                                                                std::int64_t rows,
                                                                const std::vector<TensorMeta>& inputs,
                                                                const std::vector<bool>& wants_gradient,
                                                                const ModelFunction& model) {
    Signature own = text;
    own.add(rows);
    if (const auto* kept = shard_programs_.find(own.bytes())) return *kept;
    ++traces_;
    auto traced = std::make_shared<ShardProgram>(trace(pass, rows, inputs, wants_gradient, model));
    if (key.keep) traced->keep = key.keep();
    // A placed program has two of them at most. Those that are dropped here live on in their placed programs.
    shard_programs_.make_room(2 * context_.kept_programs, [](const auto&) { return true; });
    return shard_programs_.add(own.bytes(), std::move(traced));
}

PlacedProgram& ProgramCache::get(const ProgramKey& key, Pass pass, const BatchCut& cut,
                                 const std::vector<TensorMeta>& inputs, const std::vector<bool>& wants_gradient,
                                 const ModelFunction& model, Optimizer* optimizer) {
    const auto describe_call = [&](Signature& text) {
        text.add(std::string_view(key.text.bytes()))
            .add(key.training)
            .add(pass)
            .add(std::string_view(context_.store->trainable_flags()));
        for (std::size_t i = 0; i < inputs.size(); ++i)
            text.add(with_rows(inputs[i], 1)).add(static_cast<bool>(wants_gradient[i]));
    };
    key_.clear();
    describe_call(key_);
    // Programs keep the optimizer's memory in their tasks, of which there is more once it has momentum.
    key_.add(cut.rows).add(optimizer ? optimizer->id() : 0).add(optimizer && optimizer->has_momentum());

    static const bool checks = environment::flag("LOCKSTEP_CHECK_TRACE");
    Placed* placed = placed_.find(key_.bytes());
    if (!placed) {
        Signature text;
        describe_call(text);
        auto batch = std::make_shared<BatchProgram>();
        batch->cut = cut;
        batch->pass = pass;
        batch->full = shard_program(text, key, pass, cut.rows_of(0), inputs, wants_gradient, model);
        batch->last = shard_program(text, key, pass, cut.rows_of(cut.present - 1), inputs, wants_gradient, model);
        if (batch->uneven()) require_matching_spans(*batch->full, *batch->last);
        make_room();
        Placed fresh;
        fresh.optimizer = optimizer ? optimizer->id() : 0;
        for (const auto& program : {batch->full, batch->last})
            for (const auto& storage : program->outside)
                if (!lies_in_store(*context_.store, *storage)) fresh.constants.push_back(storage);
        for (const auto& storage : fresh.constants) constants_.refresh(context_, storage);
        fresh.program =
            std::make_unique<PlacedProgram>(context_, constants_, std::move(batch), UpdatePlan{optimizer, !optimizer});
        return *placed_.add(key_.bytes(), std::move(fresh)).program;
    }
    if (checks) {
        const BatchProgram& kept = placed->program->batch();
        require_same_trace(*kept.full, trace(pass, cut.rows_of(0), inputs, wants_gradient, model));
        if (kept.uneven())
            require_same_trace(*kept.last, trace(pass, cut.rows_of(cut.present - 1), inputs, wants_gradient, model));
    }
    for (const auto& storage : placed->constants) constants_.refresh(context_, storage);
    return *placed->program;
}

void ProgramCache::make_room() {
    const auto idle = [](const Placed& placed) { return !placed.program->in_use(); };
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
