#include "lockstep/parallel/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <new>
#include <vector>

#include "lockstep/parallel/comm/report_failure.h"
#include "lockstep/parallel/engine/step_arrivals.h"
#include "lockstep/parallel/engine/training_run.h"
#include "lockstep/parallel/internal/make_engine.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/internal/threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/state_copies.h"
#include "lockstep/runtime/step_log.h"

namespace lockstep {

struct Engine::Impl {
    Impl(const std::vector<NamedTensor>& tensors, Devices devices, const EngineOptions& wanted,
         std::shared_ptr<Communicator> job)
        : options(wanted),
          run(make_engine(tensors, devices, wanted, std::move(job)), wanted.nan_policy == NanPolicy::stop,
              wanted.broadcast_buffers) {}

    EngineOptions options;
    StreamThreads threads;  // destroyed last
    TrainingRun run;
    UnwindingNotice notice;
    const int made_in = forked::generation();

    EngineParts& parts() { return run.parts(); }
    const Topology& topology() const { return run.parts().topology; }
};

Engine::Engine(const std::vector<NamedTensor>& tensors, Devices devices, const EngineOptions& options,
               std::shared_ptr<Communicator> job)
    : impl_(std::make_unique<Impl>(tensors, std::move(devices), options, std::move(job))) {
    store()->warns = rank() == 0;
    std::vector<DeviceInfo> infos;
    for (const Device device : this->devices()) infos.push_back(device_info(device));
    if (const std::string text = imbalance_warning(infos); !text.empty()) warn(text);
    log_message(LogLevel::info, [&] {
        std::vector<std::string> names;
        for (const Device device : this->devices()) names.push_back(device.str());
        std::int64_t parameters = 0;
        for (const ArenaLayout& arena : store()->parameters())
            for (const ArenaSegment& segment : arena.segments) parameters += segment.tensor.numel();
        return fmt::format("rank {} of {}: devices {}, {} shards, {} parameters", rank(), impl_->topology().ranks,
                           fmt::join(names, ", "), shards(), parameters);
    });
}

Engine::~Engine() {
    // A thread that is inside a call while another one ends the process never returns.
    if (impl_->made_in != forked::generation() || (process_exit::begun() && one_thread().used_by_another())) {
        forked::keep(std::move(impl_));
        return;
    }
    if (impl_->notice.unwinding()) report_failure();
    try {
        impl_->run.in_flight().drain();
#ifndef NDEBUG
        if (!job()) verify_replicas();  // other processes may have ended already
#endif
        impl_->parts().synchronize_all_devices();
    } catch (const std::exception& error) {  // a destructor must not throw
        std::fprintf(stderr, "lockstep: while a wrapper was destroyed: %s\n", error.what());
    }
}

const Devices& Engine::devices() const { return impl_->topology().devices; }
int Engine::shards() const { return impl_->topology().shards; }
const EngineOptions& Engine::options() const { return impl_->options; }
const std::shared_ptr<ParameterStore>& Engine::store() const { return impl_->run.parts().memory.store(); }
const ArenaPartition& Engine::cut() const { return impl_->run.parts().reduction.cut(); }
OneThreadAtATime& Engine::one_thread() const { return store()->one_thread(); }

std::uint64_t Engine::traces() const {
    const OneThreadAtATime::Use use(one_thread(), "traces");
    return impl_->run.traces();
}

std::map<std::string, std::string> Engine::algorithms() const {
    const OneThreadAtATime::Use use(one_thread(), "algorithms");
    const auto& choices = impl_->run.parts().algorithms;
    return choices ? choices->table() : AlgorithmTable();
}

void Engine::set_algorithms(std::map<std::string, std::string> choices) {
    const OneThreadAtATime::Use use(one_thread(), "set_algorithms");
    if (!impl_->parts().algorithms) {
        if (!choices.empty() && rank() == 0)
            warn(
                "the run selected its algorithms by benchmarking, and continues without: its bits differ from here on; "
                "to reuse its choices, resume in benchmark mode (--benchmark, ConvAlgorithm::benchmark)");
        return;
    }
    synchronize();
    impl_->parts().algorithms->replace(std::move(choices));
}

std::uint64_t Engine::algorithm_trials() const {
    const OneThreadAtATime::Use use(one_thread(), "algorithm_trials");
    const auto& choices = impl_->run.parts().algorithms;
    return choices ? choices->trials() : 0;
}

std::vector<std::uint64_t> Engine::operations_per_device() const {
    const OneThreadAtATime::Use use(one_thread(), "operations_per_device");
    return impl_->run.replicas().operations();
}

ShardRange Engine::held_shards() const { return impl_->topology().held; }
int Engine::rank() const { return impl_->topology().rank.number(); }
Communicator* Engine::job() const { return impl_->run.parts().ranks.job(); }

Device Engine::device_of_shard(int shard) const {
    if (shard < 0 || shard >= shards())
        throw InvalidArgument(fmt::format("shard {} of {}; shards are counted from 0", shard, shards()));
    if (!held_shards().contains(shard))
        throw InvalidArgument(fmt::format("shard {} is computed by rank {}, not by this one; expected {} to {}", shard,
                                          impl_->topology().rank_of(shard).number(), held_shards().first,
                                          held_shards().last - 1));
    return impl_->topology().device_of(shard);
}

StepLoss Engine::step(Optimizer& optimizer, const ModelCall& call, const std::vector<BatchInput>& inputs,
                      const StepOptions& options) {
    const OneThreadAtATime::Use use(one_thread(), "step");
    if (!grad_enabled())
        throw InvalidArgument(
            "step: called inside NoGrad, where the loss has no gradient; expected a call outside of it");
    store()->require_members("step");
    if (optimizer.store() != store())
        throw InvalidArgument(
            "step: the optimizer belongs to another model; construct it from this wrapper: SGD(model, ...)");
    if (impl_->run.in_join())
        throw InvalidArgument(
            "step: called inside join, where each rank has separate batches; use forward, backward() and the "
            "optimizer's step()");
    GradScaler* const scaler = options.scaler && options.scaler->is_enabled() ? options.scaler : nullptr;
    const StepPlan plan{options.accumulation_steps,
                        {options.clip, options.skip_nonfinite, scaler, options.rates, optimizer.needs_norms()}};
    plan.gate.check(optimizer);
    if (options.rates) {
        if (impl_->parts().ranks.hook())
            throw InvalidArgument(
                "step: adaptive rates cannot be combined with a communication hook, after which gradients are no "
                "longer the sum of the shards' gradients");
        constexpr std::int64_t most = std::numeric_limits<int>::max();
        const std::int64_t pieces = std::int64_t{shards()} * options.accumulation_steps;
        GradientMeasures{.shards = static_cast<int>(std::min(pieces, most))}.check();
    }
    if (scaler) {
        if (impl_->parts().ranks.hook())
            throw InvalidArgument(
                "step: a GradScaler cannot be combined with a communication hook, which would retain values that are "
                "not finite (PowerSGD) or lose scaled ones");
        scaler->move_to(store());
    }
    auto outcome = std::make_shared<StepOutcome>();
    if (options.rates || scaler) outcome->measured = std::make_shared<MeasuredStep>();
    impl_->run.step(optimizer, call, inputs, plan, outcome);
    return {*this, std::move(outcome)};
}

ForwardResult Engine::forward(const ModelCall& call, const std::vector<BatchInput>& inputs) {
    const OneThreadAtATime::Use use(one_thread(), "forward");
    store()->require_members("forward");
    GatheredOutputs gathered = impl_->run.forward(call, inputs, impl_->options.output_device.value_or(devices()[0]));
    return {std::move(gathered.outputs), std::move(gathered.prototype)};
}

void Engine::set_gradient_sync(bool on) noexcept { impl_->run.manual().set_sync(on); }
bool Engine::gradient_sync() const { return impl_->run.manual().syncs(); }

void Engine::begin_join(const JoinOptions& options) {
    const OneThreadAtATime::Use use(one_thread(), "join");
    impl_->run.begin_join(options);
}

void Engine::end_join(const ForwardOfTensors& forward_of) {
    const OneThreadAtATime::Use use(one_thread(), "join");
    impl_->run.end_join(forward_of);
}

void Engine::abort_join() noexcept { impl_->run.abort_join(); }

void Engine::set_reduction_hook(ReductionHook hook) {
    const OneThreadAtATime::Use use(one_thread(), "register_comm_hook");
    Ranks& ranks = impl_->parts().ranks;
    if (!job())
        throw InvalidArgument(
            "a communication hook requires several processes; expected a DistributedDataParallel of more than one "
            "rank");
    if (ranks.hook()) throw InvalidArgument("register_comm_hook: called a second time; expected one hook");
    if (traces() > 0)
        throw InvalidArgument(
            "register_comm_hook: training has begun; expected a call before the first forward or step");
    ranks.set_hook(std::move(hook));
}

void Engine::synchronize() {
    const OneThreadAtATime::Use use(one_thread(), "synchronize");
    impl_->run.synchronize();
}

std::optional<int> Engine::poll_stop(std::optional<int> why) {
    if (!job()) return why;
    impl_->parts().ranks.stops()->want(why);
    return impl_->parts().ranks.stops()->before_next_report();
}

std::optional<int> Engine::sync_stop(std::optional<int> why) {
    synchronize();
    Communicator* others = job();
    if (!others) return why;
    auto wanted = static_cast<std::int64_t>(std::max(StopAgreement::wire(why), impl_->parts().ranks.stops()->own()));
    others->all_reduce(&wanted, 1, DType::i64, ReduceOp::max);
    return impl_->parts().ranks.stops()->settle(static_cast<StopAgreement::Wire>(wanted));
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
    impl_->run.replicas().refresh();
    impl_->run.replicas().verify();
}

void Engine::log_steps(int steps) {
    const OneThreadAtATime::Use use(one_thread(), "log_steps");
    if (steps < 0) throw InvalidArgument(fmt::format("{} steps to log; expected 0 or more", steps));
    synchronize();
    impl_->parts().recorder = steps > 0 ? std::make_shared<StepRecorder>(steps) : nullptr;
}

std::vector<LoggedStep> Engine::step_log() {
    const OneThreadAtATime::Use use(one_thread(), "step_log");
    synchronize();
    if (!impl_->parts().recorder) return {};
    std::vector<LoggedStep> steps = impl_->parts().recorder->read();
    if (Communicator* others = job()) add_arrivals(steps, *others);
    return steps;
}

namespace {

/// A device changes persistent state only on its commit stream, so these copies run between two steps.
void enqueue_copies(const std::vector<StateCopy>& copies) {
    for (const StateCopy& copy : copies)
        if (copy.bytes > 0)
            Stream::of(copy.device, StreamRole::commit)
                .copy(copy.to, Device::host(), copy.from, copy.device, copy.bytes);
}

}  // namespace

void Engine::copy_out(StateCopies& copies) {
    const OneThreadAtATime::Use use(one_thread(), "copy_out");
    EngineParts& parts = impl_->parts();
    const Topology& topology = parts.topology;
    Stream& root = topology.commit(first_device);
    // Members are written, and new state is zeroed, on the streams of eager tensors.
    for (const DeviceIndex d : topology.devices.indices()) topology.commit(d).wait(Stream::of(topology.devices[d]));
    enqueue_copies(copies.members);
    // Later writes of a member must not overtake the copies.
    Stream::of(topology.devices[0]).wait(root);
    enqueue_copies(copies.others);
    for (const DeviceIndex d : topology.devices.others()) root.wait(topology.commit(d));
    auto* const outcome = new (copies.outcome->data()) StateCopies::Outcome;
    root.copy(&outcome->status, Device::host(), parts.memory.control(first_device).agreed(), topology.devices[0],
              sizeof outcome->status);
    root.callback([outcome, kept = copies.outcome, &ranks = parts.ranks, &health = *parts.memory.health()] {
        outcome->kernels_failed = ranks.refuses(health);
    });
    root.record(copies.done);
}

std::uint64_t Engine::steps_done() {
    const OneThreadAtATime::Use use(one_thread(), "steps_done");
    synchronize();
    return read_step_state(impl_->parts()).step;
}

void Engine::set_steps_done(std::uint64_t steps) {
    const OneThreadAtATime::Use use(one_thread(), "set_steps_done");
    synchronize();
    StepCounters state = read_step_state(impl_->parts());
    state.step = steps;
    state.micro = 0;
    state.inference = 0;
    for (const DeviceIndex d : devices().indices()) write_step_state(impl_->parts(), d, state);
}

bool Engine::is_done(const StepOutcome& outcome) const { return impl_->run.in_flight().is_done(outcome); }

const std::shared_ptr<StepOutcome>& StepLoss::outcome() const {
    detail::content_of(outcome_, "StepLoss");
    return outcome_;
}

bool StepLoss::ready() const { return outcome()->done || engine_->is_done(*outcome_); }

const StepOutcome& StepLoss::done() const {
    static_cast<void>(outcome());
    if (!outcome_->done) engine_->synchronize();
    if (outcome_->refused) throw StepError(outcome_->reason, outcome_->step);
    return *outcome_;
}

double StepLoss::item() const { return done().value; }

bool StepLoss::skipped() const { return done().skipped; }

double StepLoss::grad_norm() const {
    if (const std::optional<double> norm = done().grad_norm) return *norm;
    throw InvalidArgument("grad_norm: the step has no norm to clip; expected StepOptions with a ClipGradNorm");
}

std::string imbalance_warning(const std::vector<DeviceInfo>& infos) {
    constexpr double least = 0.75;
    const auto check = [&](auto value) -> std::string {
        std::size_t low = 0;
        std::size_t high = 0;
        for (std::size_t i = 1; i < infos.size(); ++i) {
            if (value(infos[i]) < value(infos[low])) low = i;
            if (value(infos[i]) > value(infos[high])) high = i;
        }
        if (infos.empty() || value(infos[low]) >= least * value(infos[high])) return {};
        return fmt::format(
            "There is an imbalance between your devices. You may want to exclude device {} which has less than 75% of "
            "the memory or cores of device {}. You can do so by naming the devices, or by setting the "
            "CUDA_VISIBLE_DEVICES environment variable.",
            low, high);
    };
    std::string text = check([](const DeviceInfo& info) { return static_cast<double>(info.total_memory); });
    return text.empty() ? check([](const DeviceInfo& info) { return static_cast<double>(info.units); }) : text;
}

}  // namespace lockstep
