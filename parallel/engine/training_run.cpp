#include "lockstep/parallel/engine/training_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/parallel/engine/two_phases.h"
#include "lockstep/parallel/schedule/retry_once.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

/// The programs of one step: one for the whole batch, or one per microbatch.
struct TrainingRun::PreparedStep {
    ScheduledProgram* whole = nullptr;
    std::shared_ptr<Instance> instance = {};
    Microbatches* microbatches = nullptr;

    StepNumbers numbers(const ControlBlock& control, const GateRules& gate, std::int64_t rows) const {
        return {.loss = control.loss(),
                .loss_dtype = whole ? whole->batch().of(0).loss.meta.dtype : microbatches->loss_dtype(),
                .norm = gate.has_norm() ? control.norm() : nullptr,
                .outcome = gate.may_skip() ? control.outcome() : nullptr,
                .squares = gate.rates ? control.squares() : nullptr,
                .rows = rows,
                .pieces = pieces()};
    }
    /// Number of shards into which the batch is cut.
    int pieces() const {
        if (whole) return whole->batch().cut.present;
        int all = 0;
        for (const auto& part : microbatches->parts()) all += part->cut.present;
        return all;
    }
    void enqueue(const BatchInputs& batch, Phase phase, StepRecorder* recorder) const {
        const auto scatter = [&batch](const ScheduledProgram& program, const Instance& of) {
            batch.scatter(program, of);
        };
        if (microbatches) return microbatches->enqueue(scatter, phase, recorder);
        if (phase == Phase::work) scatter(*whole, *instance);
        whole->enqueue_forward(*instance, phase, recorder);
        whole->enqueue_backward(*instance, phase, recorder);
    }
    void count(ReplicaKeeper& replicas) const {
        const auto count_one = [&](const ScheduledProgram& program) {
            replicas.count(program, true);
            ReplicaKeeper::count_writes(program.batch());
        };
        if (whole) return count_one(*whole);
        for (const ScheduledProgram* program : microbatches->programs()) count_one(*program);
    }
};

TrainingRun::TrainingRun(std::unique_ptr<EngineParts> parts, bool stops_at_nan, bool broadcasts_buffers)
    : parts_(std::move(parts)),
      in_flight_(*parts_),
      cache_(*parts_, in_flight_, stops_at_nan),
      replicas_(*parts_),
      manual_(*parts_, in_flight_, replicas_),
      broadcasts_buffers_(broadcasts_buffers) {}

void TrainingRun::bring_buffers() {
    if (broadcasts_buffers_ && parts_->ranks.job()) broadcast_buffers(*parts_);
}

void TrainingRun::note_eager_reports(const std::vector<BatchInput>& inputs) {
    eager_reports::add(parts_->eager, nullptr);
    const auto note = [&](const Tensor& tensor) {
        if (const eager_reports::Set& reports = eager_reports::of(tensor)) eager_reports::add(parts_->eager, reports);
    };
    for (const BatchInput& input : inputs)
        if (const auto* whole = std::get_if<Tensor>(&input))
            note(*whole);
        else
            for (int shard = 0; shard < std::get<ShardedTensor>(input).shards(); ++shard)
                note(std::get<ShardedTensor>(input).shard(shard));
}

void TrainingRun::synchronize() {
    in_flight_.drain();
    // With nothing in flight, this is the first check for a lost device.
    static_cast<void>(parts_->topology.commit(first_device).idle());
    eager_reports::check(parts_->eager);
}

template <class Meet>
ScheduledProgram& TrainingRun::program_for(const ProgramRequest& request, const BatchCut& cut,
                                           const ReductionSpec& spec, Meet&& meet) {
    if (!parts_->ranks.agreement() || !has_backward(request.pass) || spec.sync == GradientSync::none) {
        ScheduledProgram& program = cache_.get(request, cut, spec);
        meet();
        return program;
    }
    const TracedBatch& traced = cache_.traced(request, cut);
    meet();
    return scheduled_together(traced.batch, traced.used, spec);
}

ScheduledProgram& TrainingRun::scheduled_together(const std::shared_ptr<const BatchProgram>& batch, UsedParameters used,
                                                  const ReductionSpec& spec) {
    if (spec.sync == GradientSync::all) manual_.add_own(used);
    used.bring_together(*parts_->ranks.agreement());
    return cache_.scheduled(batch, spec, &used);
}

TrainingRun::PreparedStep TrainingRun::prepare(const ModelCall& call, const BatchInputs& batch, const StepPlan& plan,
                                               const ReductionSpec& spec) {
    const std::vector<bool> wants(batch.metas().size(), false);
    std::vector<BatchCut> cuts{batch.cut()};
    if (plan.accumulation_steps != 1) cuts = cut_microbatches(batch.cut(), plan.accumulation_steps);
    const ProgramRequest request{.call = call,
                                 .pass = Pass::step,
                                 .inputs = batch.metas(),
                                 .wants_gradient = wants,
                                 .microbatch = cuts.size() > 1,
                                 .scaled = plan.gate.scaler != nullptr,
                                 .measured = plan.gate.rates != nullptr};
    PreparedStep step;
    if (cuts.size() == 1) {
        step.whole = &program_for(request, cuts[0], spec, [] {});
        step.instance = step.whole->acquire();
        return step;
    }
    if (Communicator* const ranks = parts_->ranks.agreement()) {
        UsedParameters used = cache_.traced(request, cuts[0]).used;  // all microbatches use the same parameters
        used.bring_together(*ranks);
        step.microbatches = &cache_.get(request, cuts, spec, &used);
    } else {
        step.microbatches = &cache_.get(request, cuts, spec, nullptr);
    }
    step.microbatches->prepare();
    return step;
}

void TrainingRun::step(Optimizer& optimizer, const ModelCall& call, const std::vector<BatchInput>& inputs,
                       const StepPlan& plan, const std::shared_ptr<StepOutcome>& outcome) {
    const int slot = in_flight_.begin();
    if (plan.gate.scaler) plan.gate.scaler->begin_step();
    if (plan.gate.rates) plan.gate.rates->begin_step(optimizer);
    BatchInputs batch(*parts_, inputs, false);
    note_eager_reports(inputs);
    bring_buffers();
    StepRecorder* const recorder = parts_->recorder.get();
    const StepScope logged(recorder, StepScope::Part::whole);
    const PreparedStep step =
        prepare(call, batch, plan, {.after = AfterSum::update, .optimizer = &optimizer, .gate = plan.gate});
    const auto work = [&] {
        replicas_.refresh();
        replicas_.store_settings(optimizer);
        manual_.forget_gradients();
        batch.stage(in_flight_, slot);
        step.enqueue(batch, Phase::work, recorder);
    };
    in_two_phases(*parts_, replicas_, work, [&] {
        step.enqueue(batch, Phase::commit, recorder);
        const StepNumbers numbers = step.numbers(parts_->memory.control(first_device), plan.gate, batch.cut().rows);
        retry_once([&] { in_flight_.end(slot, numbers, outcome); });
        if (plan.accumulation_steps > 1) retry_once([&] { replicas_.hand_back(); });
    });
    if (plan.gate.scaler) plan.gate.scaler->follow(outcome->measured);
    if (plan.gate.rates) plan.gate.rates->follow(outcome->measured);
    step.count(replicas_);
    parts_->ranks.stops()->count();
    parts_->memory.store()->touch_parameters();
    parts_->pass_on_eager_reports(false);
    replicas_.mark_current();
}

void TrainingRun::enqueue_forward(ScheduledProgram& program, Instance& instance, BatchInputs& batch, int slot) {
    StepRecorder* const recorder = parts_->recorder.get();
    const StepScope logged(program.batch().pass == Pass::training ? recorder : nullptr, StepScope::Part::some);
    const auto work = [&] {
        replicas_.refresh();
        batch.stage(in_flight_, slot);
        batch.scatter(program, instance);
        program.enqueue_forward(instance, Phase::work, recorder);
    };
    in_two_phases(*parts_, replicas_, work, [&] {
        program.enqueue_forward(instance, Phase::commit, recorder);
        retry_once([&] { in_flight_.end(slot, {}, nullptr); });
        retry_once([&] { replicas_.hand_back(); });
    });
    replicas_.count(program, false);
    ReplicaKeeper::count_writes(program.batch());
    replicas_.mark_current();
    if (program.batch().pass != Pass::inference) parts_->ranks.stops()->count();
}

GatheredOutputs TrainingRun::forward(const ModelCall& call, const std::vector<BatchInput>& inputs,
                                     Device output_device) {
    const int slot = in_flight_.begin();
    BatchInputs batch(*parts_, inputs, parts_->ranks.job() != nullptr);
    note_eager_reports(inputs);
    const bool differentiates = grad_enabled();
    std::vector<bool> wants(inputs.size(), false);
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (const auto* whole = std::get_if<Tensor>(&inputs[i])) wants[i] = differentiates && whole->requires_grad();
    const bool trains = parts_->memory.store()->trainable_flags().find('1') != std::string::npos ||
                        std::find(wants.begin(), wants.end(), true) != wants.end();
    const Pass pass = differentiates && trains ? Pass::training : call.training ? Pass::forward_only : Pass::inference;
    const ShardRange held = parts_->topology.held;
    if (pass != Pass::inference && batch.cut().end < held.among(batch.cut().present).last)
        throw InvalidArgument(
            fmt::format("forward: {} rows leave some of the {} shards of this process without rows; expected more "
                        "rows, or one shard per process",
                        batch.cut().rows, held.size()));
    bring_buffers();
    const GradientSync sync = manual_.sync();
    Join* const join = pass == Pass::training ? manual_.join.get() : nullptr;
    double scale = 1;
    ScheduledProgram& program = program_for({call, pass, batch.metas(), wants}, batch.cut(), {.sync = sync},
                                            [&] { scale = join ? join->enter(sync, inputs, batch.cut().chunk) : 1; });
    const auto instance = program.acquire();
    if (join) join->keep({program.shared_batch(), inputs, &program, instance}, sync);
    std::vector<Tensor> outputs = ManualStep::room_for_outputs(program, output_device);
    enqueue_forward(program, *instance, batch, slot);
    manual_.gather(outputs, program, instance, inputs, wants, sync, scale);
    return {std::move(outputs), program.batch().full->prototype};
}

}  // namespace lockstep
