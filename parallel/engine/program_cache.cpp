#include "lockstep/parallel/engine/program_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/internal/kernels.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory.h"

namespace lockstep {

namespace {

bool is_in_store(const EngineMemory& memory, const Storage& storage) {
    const auto& whole = storage.buffer->whole();
    for (const auto* arenas : {&memory.replica(first_device).parameters, &memory.replica(first_device).buffers})
        for (const auto& arena : *arenas)
            if (whole && arena == whole) return true;
    return false;
}

/// Constants that `programs` read outside the model's arenas, each once.
std::vector<std::shared_ptr<Storage>> constants_of(const EngineMemory& memory,
                                                   const std::vector<const ShardProgram*>& programs) {
    std::vector<std::shared_ptr<Storage>> found;
    for (const ShardProgram* program : programs)
        for (const auto& storage : program->outside)
            if (!is_in_store(memory, *storage) && std::find(found.begin(), found.end(), storage) == found.end())
                found.push_back(storage);
    return found;
}

/// A traced program as a line of the log.
std::string description_of(const ShardProgram& program, const ProgramRequest& request, const TracedRows& rows) {
    std::vector<std::string> inputs;
    for (const TensorMeta& input : request.inputs)
        inputs.push_back(fmt::format("{} {}", name_of(input.dtype), with_rows(input, rows.of_shard).shape.str()));
    return fmt::format("traced {} of a shard with inputs [{}]: {} records, {} parameters with gradients",
                       has_backward(request.pass) ? "forward and backward" : "forward", fmt::join(inputs, ", "),
                       program.records.size(), program.delivered().size());
}

}  // namespace

void ProgramCache::describe(const ProgramRequest& request, Signature& key) const {
    key.add(std::string_view(request.call.key.bytes()))
        .add(variant_)
        .add(request.call.training)
        .add(request.pass)
        .add(request.microbatch)
        .add(Autocast::dtype_or(parts_.topology.arithmetic.autocast).value_or(DType::f32))
        .add(request.scaled)
        .add(request.measured)
        .add(std::string_view(parts_.memory.store()->trainable_flags()))
        .add(parts_.algorithms ? parts_.algorithms->version() : 0);
    for (std::size_t i = 0; i < request.inputs.size(); ++i)
        key.add(with_rows(request.inputs[i], 1)).add(static_cast<bool>(request.wants_gradient[i]));
}

TracedRows ProgramCache::rows_of(const ProgramRequest& request, const BatchCut& cut, int shard) const {
    TracedRows rows{cut.rows_of(shard)};
    // A cut of one process has its rows only; all processes have the same number.
    const bool of_one_process = cut.end - cut.first_shard < cut.present;
    if (!request.microbatch) rows.of_batch = cut.rows * (of_one_process ? parts_.topology.ranks : 1);
    return rows;
}

std::shared_ptr<const ShardProgram> ProgramCache::shard_program(const ProgramRequest& request, const TracedRows& rows) {
    const auto key = [&](std::int64_t rows_of_batch) {
        Signature own;
        describe(request, own);
        own.add(rows.of_shard).add(generation_).add(rows_of_batch);
        return std::string(own.bytes());
    };
    constexpr std::int64_t any = -1;
    // Few programs depend on the rows of the whole batch.
    for (const std::int64_t rows_of_batch : {any, rows.of_batch.value_or(any)})
        if (const auto* kept = shard_programs_.find(key(rows_of_batch))) return *kept;
    ++traces_;
    auto traced = std::make_shared<ShardProgram>(
        trace_shard(request, rows, parts_.topology.arithmetic, *parts_.memory.store(), stops_at_nan_));
    if (request.call.keep) traced->keep = request.call.keep();
    log_message(LogLevel::debug, [&] { return description_of(*traced, request, rows); });
    // A scheduled program has at most two of them, microbatches three. Dropped ones are still owned by their scheduled
    // programs.
    shard_programs_.make_room(3 * parts_.program_cache_size, [](const auto&) { return true; });
    const bool depends = traced->trace->uses_batch_rows();
    return shard_programs_.add(key(depends ? rows.of_batch.value_or(any) : any), std::move(traced));
}

std::shared_ptr<const BatchProgram> ProgramCache::batch_program(const ProgramRequest& request, const BatchCut& cut) {
    auto batch = std::make_shared<BatchProgram>();
    batch->cut = cut;
    batch->held = parts_.topology.held.among(cut.end);
    batch->pass = request.pass;
    batch->full = shard_program(request, rows_of(request, cut, cut.first_shard));
    batch->last = shard_program(request, rows_of(request, cut, cut.end - 1));
    if (batch->uneven()) require_matching_spans(*batch->full, *batch->last);
    return batch;
}

ProgramCache::Entry ProgramCache::with_constants(const Batches& parts, const Optimizer* optimizer) {
    std::vector<const ShardProgram*> programs;
    for (const auto& part : parts)
        for (const auto& program : {part->full, part->last}) {
            programs.push_back(program.get());
            if (program->denominator_program) programs.push_back(program->denominator_program.get());
        }
    make_room();
    Entry fresh;
    fresh.optimizer = optimizer ? optimizer->id() : 0;
    fresh.constants = constants_of(parts_.memory, programs);
    refresh_constants(fresh);
    return fresh;
}

void ProgramCache::refresh_constants(const Entry& entry) {
    for (const auto& storage : entry.constants) constants_.refresh(parts_.topology, storage);
}

std::unique_ptr<ScheduledProgram> ProgramCache::schedule(const std::shared_ptr<const BatchProgram>& batch,
                                                         const ReductionSpec& spec, const UsedParameters* used) {
    const ProgramStrategy strategy =
        has_backward(batch->pass) ? parts_.strategy->training(*batch, spec, used) : parts_.strategy->forward();
    return std::make_unique<ScheduledProgram>(parts_.topology, parts_.memory, constants_, batch, strategy,
                                              recipe_of(batch->pass));
}

std::unique_ptr<Microbatches> ProgramCache::schedule(const Batches& parts, const ReductionSpec& spec,
                                                     const UsedParameters* used) {
    const auto strategy_of = [&](const BatchProgram& batch, const Microbatch& part) {
        if (!has_backward(batch.pass)) return parts_.strategy->forward();  // denominators
        ReductionSpec own = spec;
        own.after = part.first ? AfterSum::keep : part.last ? AfterSum::add_and_update : AfterSum::add;
        return parts_.strategy->training(batch, own, used);
    };
    return std::make_unique<Microbatches>(parts_.topology, parts_.memory, constants_, parts, strategy_of,
                                          stops_at_nan_ && !spec.gate.scaler);
}

ProgramCache::Entry ProgramCache::make(const ProgramRequest& request, std::span<const BatchCut> cuts,
                                       const ReductionSpec& spec, const UsedParameters* used) {
    Batches parts;
    for (const BatchCut& cut : cuts) parts.push_back(batch_program(request, cut));
    Entry fresh = with_constants(parts, spec.optimizer);
    if (request.microbatch)
        fresh.microbatches = schedule(parts, spec, used);
    else
        fresh.program = schedule(parts[0], spec, used);
    return fresh;
}

bool ProgramCache::match(TraceChecks& checks, const ProgramRequest& request,
                         std::span<const std::shared_ptr<const BatchProgram>> batches) const {
    if (request.call.identified && !checks.due()) return true;
    std::vector<std::pair<const ShardProgram*, TracedRows>> programs;  // each once, with its rows
    const auto add = [&programs](const ShardProgram* program, const TracedRows& rows) {
        const std::pair entry(program, rows);
        if (std::find(programs.begin(), programs.end(), entry) == programs.end()) programs.push_back(entry);
    };
    for (const auto& batch : batches) {
        add(batch->full.get(), rows_of(request, batch->cut, batch->cut.first_shard));
        add(batch->last.get(), rows_of(request, batch->cut, batch->cut.end - 1));
    }
    const ParameterStore& store = *parts_.memory.store();
    const auto traced_again = [&](const TracedRows& rows) {
        return trace_forward_again(request, rows, parts_.topology.arithmetic, store, stops_at_nan_);
    };
    if (!request.call.identified)
        return std::all_of(programs.begin(), programs.end(), [&](const auto& program) {
            return difference_of_traces(*program.first, traced_again(program.second), store).empty();
        });
    try {
        for (const auto& [program, rows] : programs) require_same_trace(*program, traced_again(rows), store);
    } catch (const std::exception& error) {
        if (parts_.ranks.job() && request.pass != Pass::inference) {
            in_flight_.drain();  // steps before this one are complete on all ranks
            parts_.ranks.others().abort(fmt::format("rank {}: {}", parts_.topology.rank.number(), error.what()));
        }
        throw;
    }
    checks.passed();
    log_message(LogLevel::debug, [&] { return "traced a program again: forward and loss are unchanged"; });
    return true;
}

void ProgramCache::begin_key(const ProgramRequest& request, const BatchCut& first) {
    key_.clear();
    describe(request, key_);
    // The rows of the first microbatch determine how the others are cut.
    key_.add(first.rows).add(first.chunk).add(first.base_row).add(first.first_shard);
}

void ProgramCache::add_to_key(const ReductionSpec& spec) {
    // Programs refer to the optimizer's memory in their tasks.
    key_.add(spec.sync).add(spec.optimizer ? spec.optimizer->id() : 0);
    if (spec.optimizer) key_.add(std::string_view(spec.optimizer->program_key()));
    spec.gate.describe(key_);
    key_.add(spec.gate.scaler ? spec.gate.scaler->id() : 0);
}

ProgramCache::Entry& ProgramCache::kept(const ProgramRequest& request, std::span<const BatchCut> cuts,
                                        const ReductionSpec& spec, const UsedParameters* used) {
    const AlgorithmScope scope(parts_.algorithms.get());
    generation_ = request.call.identified ? 0 : ++generations_;
    for (variant_ = 0;; ++variant_) {
        begin_key(request, cuts[0]);
        if (used) key_.add(used->bytes());
        add_to_key(spec);
        Entry* entry = entries_.find(key_.bytes());
        if (!entry) return entries_.add(key_.bytes(), make(request, cuts, spec, used));
        const bool matches = entry->microbatches ? match(entry->checks, request, entry->microbatches->parts())
                                                 : match(entry->checks, request, {&entry->program->shared_batch(), 1});
        if (!matches) continue;
        refresh_constants(*entry);
        return *entry;
    }
}

const TracedBatch& ProgramCache::traced(const ProgramRequest& request, const BatchCut& cut) {
    const AlgorithmScope scope(parts_.algorithms.get());
    generation_ = request.call.identified ? 0 : ++generations_;
    for (variant_ = 0;; ++variant_) {
        begin_key(request, cut);
        TracedBatch* found = traced_.find(key_.bytes());
        if (!found) break;
        if (match(found->checks, request, {&found->batch, 1})) return *found;
    }
    auto batch = batch_program(request, cut);
    traced_.make_room(parts_.program_cache_size, [](const auto&) { return true; });
    const UsedParameters used(parts_.memory, *batch);
    return traced_.add(key_.bytes(), {std::move(batch), used});
}

ScheduledProgram& ProgramCache::scheduled(const std::shared_ptr<const BatchProgram>& batch, const ReductionSpec& spec,
                                          const UsedParameters* used) {
    const AlgorithmScope scope(parts_.algorithms.get());
    key_.clear();
    key_.add(reinterpret_cast<std::uintptr_t>(batch.get()));  // the address identifies it, because the program owns it
    if (used) key_.add(used->bytes());
    add_to_key(spec);
    if (Entry* found = entries_.find(key_.bytes())) {
        refresh_constants(*found);
        return *found->program;
    }
    Entry fresh = with_constants({batch}, spec.optimizer);
    fresh.program = schedule(batch, spec, used);
    return *entries_.add(key_.bytes(), std::move(fresh)).program;
}

void ProgramCache::make_room() {
    // Programs that keep their activations: more than one loop uses, which has a step and an evaluation, each with a
    // last batch, in two modes.
    constexpr std::size_t with_memory = 8;
    const auto idle = [](const Entry& entry) { return !entry.program || !entry.program->in_use(); };
    const auto orphaned = [&](const Entry& entry) {
        return entry.optimizer != 0 && !parts_.memory.store()->has_optimizer(entry.optimizer) && idle(entry);
    };
    const bool full = entries_.full(parts_.program_cache_size) || entries_.any_of(orphaned);
    if (!full && !entries_.full(with_memory + 1)) return;
    in_flight_.drain();  // the devices may be running dropped programs
    if (full) {
        log_message(LogLevel::debug,
                    [&] { return fmt::format("dropping programs: at most {} are kept", parts_.program_cache_size); });
        entries_.drop_if(orphaned);
        entries_.make_room(parts_.program_cache_size, idle);
        constants_.keep_only([&](const Storage& constant) {
            return entries_.any_of([&](const Entry& entry) {
                return std::any_of(entry.constants.begin(), entry.constants.end(),
                                   [&](const auto& storage) { return storage.get() == &constant; });
            });
        });
    }
    entries_.for_each_beyond(with_memory, [](Entry& entry) {
        if (entry.program)
            entry.program->release_memory();
        else
            entry.microbatches->release_memory();
    });
    // Ever new batch sizes leave cached blocks that fit no later one.
    for (const Device device : parts_.topology.devices)
        if (const MemoryStats stats = memory_stats(device); stats.reserved > 2 * stats.current)
            release_cached_memory(device);
}

}  // namespace lockstep
