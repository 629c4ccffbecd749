#include "lockstep/parallel/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/engine/batch_inputs.h"
#include "lockstep/parallel/engine/in_flight.h"
#include "lockstep/parallel/engine/join.h"
#include "lockstep/parallel/engine/longer_form.h"
#include "lockstep/parallel/engine/make_engine_context.h"
#include "lockstep/parallel/engine/program_cache.h"
#include "lockstep/parallel/engine/rank_agreement.h"
#include "lockstep/parallel/engine/two_phases.h"
#include "lockstep/parallel/step_log.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/forked.h"
#include "lockstep/runtime/internal/unwinding_notice.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/tape.h"
#include "lockstep/runtime/warning.h"

namespace lockstep {

struct Engine::Impl {
    Impl(std::vector<NamedTensor> tensors, Devices devices, EngineOptions wanted, std::shared_ptr<Communicator> job)
        : options(wanted),
          context(make_engine_context(std::move(tensors), std::move(devices), wanted, std::move(job))) {
        in_flight = std::make_unique<InFlight>(context);
        cache = std::make_unique<ProgramCache>(context, *in_flight, constants, wanted.nan_policy);
        replicas = std::make_unique<ReplicaKeeper>(context);
        longer = std::make_unique<LongerForm>(context, *in_flight, *replicas);
    }

    EngineOptions options;
    StreamThreads threads;  // goes last
    EngineContext context;
    ConstantCache constants;
    std::unique_ptr<InFlight> in_flight;
    std::unique_ptr<ProgramCache> cache;
    std::unique_ptr<ReplicaKeeper> replicas;
    std::unique_ptr<LongerForm> longer;
    UnwindingNotice notice;
    const int made_in = forked::generation();

    /// Before a step or forward of DDP's broadcast_buffers.
    void bring_buffers() {
        if (options.broadcast_buffers && context.job) take_buffers(context);
    }

    /// What comes in may depend on what eager calls have found.
    void note_eager_reports(const std::vector<BatchInput>& inputs) {
        eager_reports::add(context.eager, nullptr);
        const auto note = [&](const Tensor& tensor) {
            if (const eager_reports::Set& reports = eager_reports::of(tensor))
                eager_reports::add(context.eager, reports);
        };
        for (const BatchInput& input : inputs)
            if (const auto* whole = std::get_if<Tensor>(&input))
                note(*whole);
            else
                for (int shard = 0; shard < std::get<ShardedTensor>(input).shards(); ++shard)
                    note(std::get<ShardedTensor>(input).shard(shard));
    }

    /// The program of a call: where ranks may use different parameters, for those that any of them uses. Calls `meet`
    /// behind what the model throws, and before the ranks agree.
    template <class Meet>
    PlacedProgram& program_for(const ProgramCall& call, const BatchCut& cut, Optimizer* optimizer, Meet&& meet) {
        const bool has_gradients = call.pass == Pass::training || call.pass == Pass::step;
        if (!context.agreement || !has_gradients || call.sync == GradientSync::none) {
            PlacedProgram& program = cache->get(call, cut, optimizer);
            meet();
            return program;
        }
        const TracedBatch& traced = cache->traced(call, cut);
        meet();
        return placed_together(traced.batch, traced.used, call.sync, optimizer, call.gate);
    }

    PlacedProgram& placed_together(const std::shared_ptr<const BatchProgram>& batch, UsedParameters used,
                                   GradientSync sync, Optimizer* optimizer, const GateRules& gate = {}) {
        if (sync == GradientSync::all) longer->add_own(used);
        used.bring_together(*context.agreement);
        return cache->placed(batch, sync, optimizer, &used, gate);
    }

    /// What this rank runs when it has no batch left and another one goes forward.
    PlacedProgram& program_for(const Join::Company& company, GradientSync sync) {
        if (context.agreement && sync != GradientSync::none) {
            UsedParameters used(context, *company.batch);
            used.use_none();
            return placed_together(company.batch, used, sync, nullptr);
        }
        return company.program ? *company.program : cache->placed(company.batch, sync, nullptr, nullptr);
    }

    /// What this rank runs then with a batch that it was lent.
    Join::Company company_of(const std::vector<Tensor>& lent, const ForwardCall& call) {
        Join::Company company{nullptr, {lent.begin(), lent.end()}};
        const BatchInputs batch(context, company.inputs, true);
        const std::vector<bool> wants(lent.size(), false);
        company.batch = cache->traced({call.key, Pass::training, batch.metas(), wants, call.model}, batch.cut()).batch;
        return company;
    }

    /// The forward of the longer form.
    void enqueue_forward(PlacedProgram& program, Instance& instance, BatchInputs& batch, int slot) {
        const bool trains = program.batch().pass == Pass::training;
        const StepScope logged(trains ? context.recorder.get() : nullptr, StepScope::Part::some);
        const auto work = [&] {
            replicas->refresh();
            batch.stage(*in_flight, slot);
            batch.scatter(program, instance);
            program.enqueue_forward(instance, Phase::work);
        };
        in_two_phases(context, *replicas, work, [&] {
            program.enqueue_forward(instance, Phase::commit);
            insist([&] { in_flight->end(slot, {}, nullptr); });
            insist([&] { replicas->hand_back(); });
        });
        replicas->count(program, false);
        replicas->mark_current();
        if (program.batch().pass != Pass::inference) context.stops->count();
    }
};

Engine::Engine(std::vector<NamedTensor> tensors, Devices devices, EngineOptions options,
               std::shared_ptr<Communicator> job)
    : impl_(std::make_unique<Impl>(std::move(tensors), std::move(devices), options, std::move(job))) {
    std::vector<DeviceInfo> infos;
    for (const Device device : this->devices()) infos.push_back(device_info(device));
    if (const std::string text = imbalance_warning(infos); !text.empty()) warn(text);
}

Engine::~Engine() {
    if (impl_->made_in != forked::generation()) {
        forked::keep(std::move(impl_));
        return;
    }
    if (impl_->notice.unwinding()) note_failure();
    try {
        impl_->in_flight->drain();
#ifndef NDEBUG
        if (!impl_->context.job) verify_replicas();  // other processes may be gone already
#endif
        rest_all_devices(impl_->context);
    } catch (const std::exception& error) {  // a destructor has nobody to throw to
        std::fprintf(stderr, "lockstep: while a wrapper was destroyed: %s\n", error.what());
    }
}

const Devices& Engine::devices() const { return impl_->context.devices; }
int Engine::shards() const { return impl_->context.shards; }
const EngineOptions& Engine::options() const { return impl_->options; }
const std::shared_ptr<ParameterStore>& Engine::store() const { return impl_->context.store; }
const ArenaCut& Engine::cut() const { return *impl_->context.cut; }
OneThreadAtATime& Engine::one_thread() const { return impl_->context.store->one_thread(); }

std::uint64_t Engine::traces() const {
    const OneThreadAtATime::Use use(one_thread(), "traces");
    return impl_->cache->traces();
}

std::vector<std::uint64_t> Engine::operations_per_device() const {
    const OneThreadAtATime::Use use(one_thread(), "operations_per_device");
    return impl_->replicas->operations();
}

ShardRange Engine::held_shards() const { return impl_->context.held; }
int Engine::rank() const { return impl_->context.rank(); }
Communicator* Engine::job() const { return impl_->context.job.get(); }

Device Engine::device_of_shard(int shard) const {
    if (shard < 0 || shard >= shards())
        throw InvalidArgument(fmt::format("there is no shard {}, only {}; count from 0", shard, shards()));
    if (!held_shards().contains(shard))
        throw InvalidArgument(fmt::format("shard {} is computed by rank {}, not by this one; ask for shards {} to {}",
                                          shard, impl_->context.rank_of(shard), held_shards().first,
                                          held_shards().last - 1));
    const Lane& lane = impl_->context.lanes[static_cast<std::size_t>(impl_->context.lane_of(shard))];
    return devices()[lane.device];
}

StepLoss Engine::step(Optimizer& optimizer, const ProgramKey& key, const std::vector<BatchInput>& inputs,
                      const ModelFunction& model, const StepOptions& options) {
    const OneThreadAtATime::Use use(one_thread(), "step");
    if (optimizer.store() != store())
        throw InvalidArgument(
            "step: the optimizer belongs to another model; make it from this wrapper: SGD(model, ...)");
    if (impl_->context.job && options.micro_steps != 1)
        throw InvalidArgument("step: several processes take a batch at once; give micro_steps 1");
    if (impl_->longer->join)
        throw InvalidArgument(
            "step: inside join ranks have batches of their own; use forward, backward() and the optimizer's step()");
    const GateRules gate{options.clip, options.skip_nonfinite};
    gate.check(optimizer);
    const int slot = impl_->in_flight->begin();
    BatchInputs batch(impl_->context, inputs, false);
    impl_->note_eager_reports(inputs);
    impl_->bring_buffers();
    const std::vector<bool> wants(inputs.size(), false);
    const ProgramCall call{key, Pass::step, batch.metas(), wants, model, GradientSync::new_ones, gate};
    auto state = std::make_shared<StepLoss::State>();
    state->engine = this;
    const StepScope logged(impl_->context.recorder.get(), StepScope::Part::whole);
    const auto go = [&](const void* loss, DType dtype, const auto& programs, const auto& enqueue) {
        const ControlBlock& control = impl_->context.control[0];
        const StepNumbers numbers{.loss = loss,
                                  .loss_dtype = dtype,
                                  .norm = gate.has_norm() ? control.norm() : nullptr,
                                  .outcome = gate.skip_nonfinite ? control.outcome() : nullptr};
        const auto work = [&] {
            impl_->replicas->refresh();
            impl_->replicas->store_settings(optimizer);
            impl_->longer->forget_gradients();
            batch.stage(*impl_->in_flight, slot);
            enqueue(Phase::work);
        };
        in_two_phases(impl_->context, *impl_->replicas, work, [&] {
            enqueue(Phase::commit);
            insist([&] { impl_->in_flight->end(slot, numbers, state); });
            if (options.micro_steps > 1) insist([&] { impl_->replicas->hand_back(); });
        });
        for (const PlacedProgram* program : programs) impl_->replicas->count(*program, true);
    };
    const auto run_whole = [&](const BatchCut& cut) {
        PlacedProgram& program = impl_->program_for(call, cut, &optimizer, [] {});
        const auto instance = program.acquire();
        const DType dtype = program.batch().of(0).loss.meta.dtype;
        go(impl_->context.control[0].loss(), dtype, std::array{&program}, [&](Phase phase) {
            if (phase == Phase::work) batch.scatter(program, *instance);
            program.enqueue_forward(*instance, phase);
            program.enqueue_backward(*instance, phase);
        });
    };
    if (options.micro_steps == 1) {
        run_whole(batch.cut());
    } else {
        const std::vector<BatchCut> parts = cut_micro_steps(batch.cut(), options.micro_steps);
        if (parts.size() == 1) {
            run_whole(parts[0]);
        } else {
            MicroSteps& steps = impl_->cache->get(call, parts, optimizer);
            steps.prepare();
            go(steps.loss(), steps.loss_dtype(), steps.programs(), [&](Phase phase) { steps.enqueue(batch, phase); });
        }
    }
    impl_->context.stops->count();
    store()->touch_parameters();
    impl_->context.pass_on_eager_reports(false);
    impl_->replicas->mark_current();
    return StepLoss(std::move(state));
}

ForwardResult Engine::forward(const ProgramKey& key, const std::vector<BatchInput>& inputs,
                              const ModelFunction& model) {
    const OneThreadAtATime::Use use(one_thread(), "forward");
    const int slot = impl_->in_flight->begin();
    BatchInputs batch(impl_->context, inputs, impl_->context.job != nullptr);
    impl_->note_eager_reports(inputs);
    const bool taped = grad_enabled();
    std::vector<bool> wants(inputs.size(), false);
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (const auto* whole = std::get_if<Tensor>(&inputs[i])) wants[i] = taped && whole->requires_grad();
    const bool trains = store()->trainable_flags().find('1') != std::string::npos ||
                        std::find(wants.begin(), wants.end(), true) != wants.end();
    const Pass pass = taped && trains ? Pass::training : key.training ? Pass::forward_only : Pass::inference;
    if (pass != Pass::inference && batch.cut().end < impl_->context.held.among(batch.cut().present).last)
        throw InvalidArgument(
            fmt::format("forward: {} rows leave some of the {} shards of this process without any; give more rows, or "
                        "use one shard a "
                        "process",
                        batch.cut().rows, impl_->context.held.size()));
    impl_->bring_buffers();
    const GradientSync sync = impl_->longer->sync();
    Join* const join = pass == Pass::training ? impl_->longer->join.get() : nullptr;
    double scale = 1;
    PlacedProgram& program =
        impl_->program_for({key, pass, batch.metas(), wants, model, sync}, batch.cut(), nullptr,
                           [&] { scale = join ? join->enter(sync, inputs, batch.cut().chunk) : 1; });
    const auto instance = program.acquire();
    if (join) join->keep({program.shared_batch(), inputs, &program, instance}, sync);
    impl_->enqueue_forward(program, *instance, batch, slot);
    const auto& prototype = program.batch().full->prototype;
    return {impl_->longer->gather(program, instance, inputs, wants, sync, scale,
                                  impl_->options.output_device.value_or(devices()[0])),
            prototype};
}

void Engine::set_gradient_sync(bool on) noexcept { impl_->longer->set_sync(on); }
bool Engine::gradient_sync() const { return impl_->longer->syncs(); }

void Engine::begin_join(const JoinOptions& options) {
    const OneThreadAtATime::Use use(one_thread(), "join");
    if (!job()) throw InvalidArgument("join is for several processes; make the model distributed");
    if (impl_->longer->join) throw InvalidArgument("join: another one is going on; leave it first");
    impl_->longer->join = std::make_unique<Join>(impl_->context, options);
}

void Engine::end_join(const ForwardOfTensors& forward_of) {
    const OneThreadAtATime::Use use(one_thread(), "join");
    struct SyncAsBefore {
        LongerForm& longer;
        bool synced = longer.syncs();
        ~SyncAsBefore() { longer.set_sync(synced); }
    };
    const SyncAsBefore restore{*impl_->longer};
    Join& join = *impl_->longer->join;
    join.leave([&](bool syncs, const std::vector<Tensor>& lent) {
        set_gradient_sync(syncs);
        impl_->longer->forget_shared_gradients();
        const GradientSync sync = impl_->longer->sync();
        if (!lent.empty()) join.keep(impl_->company_of(lent, forward_of(lent.size())), sync);
        const Join::Company& company = join.company(sync);
        const int slot = impl_->in_flight->begin();
        BatchInputs batch(impl_->context, company.inputs, true);
        PlacedProgram& program = impl_->program_for(company, sync);
        const auto instance = program.acquire();
        impl_->enqueue_forward(program, *instance, batch, slot);
        impl_->longer->go_back_without_gradients(program, *instance, sync);
    });
    synchronize();
    join.hand_on();
    give_up_join();
    store()->touch_parameters();
    impl_->replicas->mark_current();
}

void Engine::give_up_join() noexcept { impl_->longer->join.reset(); }

void Engine::set_reduction_hook(ReductionHook hook) {
    const OneThreadAtATime::Use use(one_thread(), "register_comm_hook");
    auto& place = impl_->context.hook;
    if (!job()) throw InvalidArgument("a communication hook is for several processes; make the model distributed");
    if (place) throw InvalidArgument("register_comm_hook can only be called once");
    if (traces() > 0) throw InvalidArgument("register_comm_hook: training has begun; call it right after the wrapper");
    place = std::make_shared<const ReductionHook>(std::move(hook));
}

void Engine::synchronize() {
    const OneThreadAtATime::Use use(one_thread(), "synchronize");
    impl_->in_flight->drain();
    // With nothing in flight a device that was lost has not been asked yet.
    static_cast<void>(impl_->context.commit(0).idle());
    eager_reports::check(impl_->context.eager);
}

std::optional<int> Engine::stop_before_step(std::optional<int> why) {
    if (!job()) return why;
    impl_->context.stops->want(why);
    return impl_->context.stops->before_next_report();
}

std::optional<int> Engine::agree_on_stop(std::optional<int> why) {
    synchronize();
    Communicator* others = job();
    if (!others) return why;
    auto wanted = static_cast<std::int64_t>(std::max(StopAgreement::wire(why), impl_->context.stops->own()));
    others->all_reduce(&wanted, 1, DType::i64, ReduceOp::max);
    return impl_->context.stops->settle(static_cast<StopAgreement::Wire>(wanted));
}

std::int64_t Engine::sum_over_ranks(std::int64_t value) {
    const OneThreadAtATime::Use use(one_thread(), "sum_over_ranks");
    synchronize();
    if (Communicator* others = job()) others->all_reduce(&value, 1, DType::i64, ReduceOp::sum);
    return value;
}

void Engine::verify_replicas() {
    const OneThreadAtATime::Use use(one_thread(), "verify_replicas");
    synchronize();
    impl_->replicas->refresh();
    impl_->replicas->verify();
}

void Engine::log_steps(int steps) {
    const OneThreadAtATime::Use use(one_thread(), "log_steps");
    if (steps < 0) throw InvalidArgument(fmt::format("{} steps to log: give a number from 0 up", steps));
    synchronize();
    impl_->context.recorder = steps > 0 ? std::make_shared<StepRecorder>(steps) : nullptr;
}

std::vector<LoggedStep> Engine::step_log() {
    const OneThreadAtATime::Use use(one_thread(), "step_log");
    synchronize();
    return impl_->context.recorder ? impl_->context.recorder->read(job()) : std::vector<LoggedStep>();
}

std::uint64_t Engine::steps_done() {
    const OneThreadAtATime::Use use(one_thread(), "steps_done");
    synchronize();
    return read_step_state(impl_->context).step;
}

void Engine::set_steps_done(std::uint64_t steps) {
    const OneThreadAtATime::Use use(one_thread(), "set_steps_done");
    synchronize();
    StepState state = read_step_state(impl_->context);
    state.step = steps;
    state.micro = 0;
    for (int d = 0; d < devices().size(); ++d) write_step_state(impl_->context, d, state);
}

bool Engine::is_done(const StepLoss::State& state) const { return impl_->in_flight->is_done(state); }

bool StepLoss::ready() const {
    const Engine* engine = state_->engine;
    return !engine || engine->is_done(*state_);
}

const StepLoss::State& StepLoss::done() const {
    if (Engine* engine = state_->engine) engine->synchronize();
    if (state_->refused) throw StepError(state_->reason, state_->step);
    return *state_;
}

double StepLoss::item() const { return done().value; }

bool StepLoss::skipped() const { return done().skipped; }

double StepLoss::grad_norm() const {
    if (const std::optional<double> norm = done().grad_norm) return *norm;
    throw InvalidArgument("grad_norm: the step had no norm to clip; give StepOptions a ClipGradNorm");
}

}  // namespace lockstep
