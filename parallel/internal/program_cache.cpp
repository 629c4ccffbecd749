#include "lockstep/parallel/internal/program_cache.h"

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

std::shared_ptr<const ShardProgram> ProgramCache::shard_program(const std::string& text, const ProgramKey& key,
                                                                Pass pass, std::int64_t rows,
                                                                const std::vector<TensorMeta>& inputs,
                                                                const std::vector<bool>& wants_gradient,
                                                                const ModelFunction& model) {
    auto& program = shard_programs_[text + "#" + std::to_string(rows)];
    if (program) return program;
    ++traces_;
    auto traced = std::make_shared<ShardProgram>(trace(pass, rows, inputs, wants_gradient, model));
    traced->keep = key.keep;
    program = std::move(traced);
    return program;
}

PlacedProgram& ProgramCache::get(const ProgramKey& key, Pass pass, const BatchCut& cut,
                                 const std::vector<TensorMeta>& inputs, const std::vector<bool>& wants_gradient,
                                 const ModelFunction& model, Optimizer* optimizer) {
    Signature signature;
    signature.add(std::string_view(key.text))
        .add(key.training)
        .add(pass)
        .add(std::string_view(context_.store->trainable_flags()));
    for (std::size_t i = 0; i < inputs.size(); ++i)
        signature.add(with_rows(inputs[i], 1)).add(static_cast<bool>(wants_gradient[i]));
    const std::string& text = signature.bytes();

    static const bool checks = environment::flag("LOCKSTEP_CHECK_TRACE");
    auto& placed = placed_[{text, cut.rows, optimizer ? optimizer->id() : 0}];
    if (!placed || placed->has_momentum() != (optimizer && optimizer->has_momentum())) {
        auto batch = std::make_shared<BatchProgram>();
        batch->cut = cut;
        batch->pass = pass;
        batch->full = shard_program(text, key, pass, cut.rows_of(0), inputs, wants_gradient, model);
        batch->last = shard_program(text, key, pass, cut.rows_of(cut.present - 1), inputs, wants_gradient, model);
        if (batch->uneven()) require_matching_spans(*batch->full, *batch->last);
        refresh_constants(*batch);
        placed =
            std::make_unique<PlacedProgram>(context_, constants_, std::move(batch), UpdatePlan{optimizer, !optimizer});
    } else if (checks) {
        const BatchProgram& kept = placed->batch();
        require_same_trace(*kept.full, trace(pass, cut.rows_of(0), inputs, wants_gradient, model));
        if (kept.uneven())
            require_same_trace(*kept.last, trace(pass, cut.rows_of(cut.present - 1), inputs, wants_gradient, model));
    }
    refresh_constants(placed->batch());
    return *placed;
}

void ProgramCache::refresh_constants(const BatchProgram& batch) {
    for (const auto& program : {batch.full, batch.last})
        for (const auto& storage : program->outside)
            if (!lies_in_store(*context_.store, *storage)) constants_.refresh(context_, storage);
}

}  // namespace lockstep
