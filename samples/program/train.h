// A whole run of a sample: load, train, evaluate, save, report.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/samples/program/options.h"
#include "lockstep/samples/program/report.h"
#include "lockstep/samples/program/run_report.h"
#include "lockstep/samples/program/same_on_ranks.h"

namespace program {

/// What a program trains with, beside model and data.
struct Training {
    lockstep::Optimizer& optimizer;
    std::string unit = "samples";  ///< what rows are
    ScoreName score = {};
    /// Called on all ranks after so many equal parts of every epoch, and at the end; empty: no evaluation.
    std::function<double()> evaluate = {};
    int evaluations = 1;
    lockstep::LRSchedule* schedule = nullptr;          ///< takes a step per epoch; null: the rate stays
    std::map<std::string, std::string> metadata = {};  ///< of the weights' file, for those who use the model
    /// Called after each evaluation, on the process that logs, while the others wait.
    std::function<void(lockstep::EventLog& log, std::int64_t step)> log_evaluation = {};
};

inline lockstep::SgdOptions sgd_options(const Options& options) {
    return {.lr = options.lr.value_or(options.default_lr),
            .momentum = options.momentum.value_or(options.default_momentum)};
}

/// "lr 0.1, momentum 0.5".
std::string rates_of(const lockstep::Optimizer& optimizer);

/// Sets the rate that --lr asks for where a run goes on. Where a schedule goes on too, it says the rate: throws
/// UsageError when it did not begin with that of --lr.
void set_rate(const Options& options, const lockstep::RunState& state, lockstep::Optimizer& optimizer);

/// Throws UsageError where the run that `state` comes from has another seed, or other batches within an epoch.
void require_same_run(const Options& options, const lockstep::RunState& state, std::int64_t batch_size);

/// Where a run begins.
struct Beginning {
    lockstep::RunState state;
    bool has_weights_alone = false;  ///< --load has weights, and no run that could go on
};

/// Loads what --load names into model and optimizer.
template <class Model>
Beginning begin_run(const Options& options, Model& model, lockstep::Optimizer& optimizer, std::int64_t batch_size) {
    Beginning begin;
    lockstep::RunState& state = begin.state;
    state.seed = options.seed;
    if (options.load.empty()) return begin;
    const auto saved = lockstep::load_checkpoint(model, optimizer, options.load);
    begin.has_weights_alone = !saved;
    if (saved) {
        state = *saved;
        require_same_run(options, state, batch_size);
        // The settings are the run's; what is asked for now wins.
        set_rate(options, state, optimizer);
        if (options.momentum) optimizer.set_setting("momentum", *options.momentum);
    }
    if (options.group) {
        require_same_on_ranks(*options.group,
                              {fmt::format("a run of {} steps in --load", state.steps),
                               fmt::format("one in epoch {} before batch {}", state.epoch + 1, state.batch + 1),
                               "the rates " + rates_of(optimizer)});
        model.engine().verify_replicas();
    }
    return begin;
}

/// Where a run is saved that a signal stops: beside FILE, where that stands for several; empty: there.
std::filesystem::path interrupted_file(const std::filesystem::path& save);

/// Logs what a program wants to after evaluations.
class LogEvaluations final : public lockstep::RunHook {
public:
    LogEvaluations(const Training& training, RunReport& report) : training_(&training), report_(&report) {}
    void at_pause(lockstep::Run& run) override { log(run); }
    void after_epoch(lockstep::Run& run) override { log(run); }
    void after_run(lockstep::Run& run) override { log(run); }

private:
    void log(const lockstep::Run& run);
    const Training* training_;
    RunReport* report_;
    std::uint64_t logged_ = 0;  // steps of the evaluation that was logged last
};

/// Trains on the rows of `loader` as the options say, until a signal stops it at the latest: then that is returned.
/// `began`: when the program did.
template <class Model, class Data, class LossFunction>
std::optional<Stop> train(const std::string& name, const Options& options, Model& model, lockstep::Loader<Data>& loader,
                          const LossFunction& loss, const Training& training,
                          std::chrono::steady_clock::time_point began) {
    std::optional<lockstep::CheckpointLock> lock;
    if (!options.save.empty() && options.leads()) lock.emplace(options.save);
    require_writable(options.json);
    Beginning begin = begin_run(options, model, training.optimizer, loader.options().batch_size);
    lockstep::RunState& state = begin.state;
    state.metadata = training.metadata;
    // The range of f16 is what scaling is for; bf16 has that of f32.
    lockstep::GradScaler scaler({.enabled = options.autocast() == lockstep::DType::f16});
    lockstep::Runner runner(model, training.optimizer, loader, loss,
                            {.epochs = static_cast<std::uint64_t>(options.epochs),
                             .steps = options.steps,
                             .step = {.accumulation_steps = options.accumulation_steps, .scaler = &scaler}});
    runner.go_on_from(state);
    const lockstep::StopSignals signals;
    runner.stop_on(signals);

    const auto what = fmt::format("{} rows a step in {} {}, {} an epoch", loader.options().batch_size, model.shards(),
                                  model.shards() == 1 ? "shard" : "shards", loader.rows());
    if (training.evaluate)
        runner.add(lockstep::Evaluation(training.score.name, training.evaluate, training.evaluations));
    RunReport* report = &runner.add(RunReport(
        name, options, model.devices(),
        {what, rates_of(training.optimizer), loader.rows(), training.unit, training.score, begin.has_weights_alone},
        state.steps));
    runner.add(lockstep::LogRun(report->log().events()));
    if (training.log_evaluation && !options.log_dir.empty()) runner.add(LogEvaluations(training, *report));
    // After the evaluation, which tells the rate of the steps before it.
    if (training.schedule) runner.add(lockstep::FollowSchedule(*training.schedule));
    std::filesystem::path saved = options.save;
    if (!options.save.empty())
        runner
            .add(lockstep::SaveCheckpoints({.file = options.save,
                                            .every_steps = options.save_every.steps,
                                            .every_epochs = options.save_every.epochs,
                                            .interrupted = interrupted_file(options.save)}))
            .on_save = [&](const auto& file) {
            saved = file;
            report->line(fmt::format("saved {}", file.string()));
        };
    runner.run();

    Figures& figures = report->figures();
    figures.samples_per_second = runner.rows_per_second();
    figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    figures.algorithms = model.engine().algorithms();
    program::report(options, figures, model.devices());
    const int signal = runner.stopped().value_or(0);
    if (signal == 0) return std::nullopt;
    return Stop{signal,
                options.leads() ? how_to_go_on(saved, signal, static_cast<std::int64_t>(runner.state().steps)) : ""};
}

}  // namespace program
