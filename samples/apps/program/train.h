// A whole run of a sample: load, train, evaluate, save, report.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/stop_signals.h"
#include "lockstep/samples/apps/program/digest.h"
#include "lockstep/samples/apps/program/options.h"
#include "lockstep/samples/apps/program/ranks_agree.h"
#include "lockstep/samples/apps/program/report.h"
#include "lockstep/samples/apps/program/run_report.h"

namespace program {

/// Everything that a program needs for training, except model and data.
struct Training {
    lockstep::Optimizer& optimizer;
    std::string unit = "samples";  ///< name of the rows
    ScoreName score = {};
    /// Called on all ranks after each of several equal parts of every epoch, and at the end; empty: no evaluation.
    std::function<double()> evaluate = {};
    int evaluations = 1;
    /// Values that determine the result, in addition to the common flags, by flag name: {"scale", "0.5"}. A resumed
    /// run must have the same values.
    std::map<std::string, std::string> facts = {};
    std::map<std::string, std::string> metadata = {};  ///< stored with the weights, for users of the model
    /// Called after each evaluation, on the process that logs, while the others wait.
    std::function<void(lockstep::EventLog& log, std::int64_t step)> log_evaluation = {};
};

inline lockstep::SgdOptions sgd_options(const Options& options) {
    return {.lr = options.lr.value_or(options.default_lr),
            .momentum = options.momentum.value_or(options.default_momentum),
            .weight_decay = options.weight_decay.value_or(options.default_weight_decay)};
}

/// "lr 0.1, momentum 0.5".
std::string rates_of(const lockstep::Optimizer& optimizer);

/// Sets the learning rate of --lr in a resumed run. A resumed schedule determines the rate itself: throws UsageError if
/// it started with another rate than --lr.
void set_rate(const Options& options, const lockstep::RunState& state, lockstep::Optimizer& optimizer);

/// Values that determine the result of every program, by flag name. `shards`: number of shards of the model. `state`:
/// state of the resumed run, which may have had one shard per device.
std::map<std::string, std::string> facts_of(const Options& options, const lockstep::RunState& state, int shards);

/// A finished run is evaluated and saved with any flags: its facts do not change.
void keep_facts_of_finished(const Options& options, const lockstep::RunState& state,
                            std::map<std::string, std::string>& facts);

/// "continues with --seed 3 instead of 1", for the changes that --allow-changed permits; empty: no changes.
/// Throws UsageError for other changes, and for another batch size within an epoch.
std::string accepted_changes(const Options& options, const lockstep::RunState& state,
                             const std::map<std::string, std::string>& facts, std::int64_t batch_size);

/// "4 rows, 1f3a...": identifies a dataset by its number of rows and a few of them.
template <class Data>
std::string describe_data(const Data& data) {
    Digest digest;
    constexpr std::int64_t looked_at = 8;
    for (std::int64_t i = 0; i < std::min(looked_at, data.size()); ++i) {
        const auto row = data.get(i * (data.size() - 1) / std::max<std::int64_t>(1, looked_at - 1));
        const auto add = [&](const lockstep::Tensor& tensor) {
            for (const double value : tensor.to(lockstep::DType::f64).template to_vector<double>())
                digest.add(std::bit_cast<std::uint64_t>(value));
        };
        std::apply([&](const auto&... fields) { (add(fields), ...); }, row);
    }
    return fmt::format("{} rows, {:016x}", data.size(), digest.value());
}

/// The schedule of --schedule; null for schedules that are stepped elsewhere. `batches`: batches per epoch.
std::unique_ptr<lockstep::LRSchedule> schedule_of(const Options& options, lockstep::Optimizer& optimizer,
                                                  std::int64_t batches);
/// The rule of --rates; null: none.
std::unique_ptr<lockstep::AdaptiveRates> rates_of_flags(const Options& options);

/// Start of a run.
struct Beginning {
    lockstep::RunState state;
    bool has_only_weights = false;  ///< whether --load has weights but no run state
};

/// Loads the checkpoint of --load into model and optimizer.
template <class Model>
Beginning begin_run(const Options& options, Model& model, lockstep::Optimizer& optimizer) {
    Beginning begin;
    lockstep::RunState& state = begin.state;
    state.seed = options.seed;
    if (options.load.empty()) return begin;
    const auto saved = lockstep::load_checkpoint(model, optimizer, options.load);
    begin.has_only_weights = !saved;
    if (saved) {
        state = *saved;
        // Files of earlier versions have no facts.
        state.fields.try_emplace("fact seed", std::to_string(state.seed));
        // Settings are those of the run unless flags override them.
        set_rate(options, state, optimizer);
        if (options.momentum) optimizer.set_setting("momentum", *options.momentum);
        if (options.weight_decay) optimizer.set_setting("weight_decay", *options.weight_decay);
    }
    if (options.group) {
        require_ranks_agree(*options.group,
                            {fmt::format("a run of {} steps in --load", state.steps),
                             fmt::format("a run in epoch {} before batch {}", state.epoch + 1, state.batch + 1),
                             "the rates " + rates_of(optimizer)});
        model.engine().verify_replicas();
    }
    return begin;
}

/// File for a run that a signal stops: next to FILE if FILE has {epoch} or {step}; empty: FILE itself.
std::filesystem::path interrupted_file(const std::filesystem::path& save);

/// Logs further values of a program after evaluations.
class LogEvaluations final : public lockstep::RunHook {
public:
    LogEvaluations(const Training& training, RunReport& report) : training_(&training), report_(&report) {}
    void at_pause(lockstep::Runner& run) override { log(run); }
    void after_epoch(lockstep::Runner& run) override { log(run); }
    void after_run(lockstep::Runner& run) override { log(run); }

private:
    void log(const lockstep::Runner& run);
    const Training* training_;
    RunReport* report_;
    std::uint64_t logged_ = 0;  // steps at the last logged evaluation
};

/// Trains on the rows of `loader` according to the options, or until a signal stops it, which is then returned.
/// `began`: start time of the program.
template <class Model, class Data, class LossFunction>
std::optional<Stop> train(const std::string& name, const Options& options, Model& model, lockstep::Loader<Data>& loader,
                          const LossFunction& loss, const Training& training,
                          std::chrono::steady_clock::time_point began) {
    if (!training.evaluate && (options.schedule.name == "plateau" || options.early_stop > 0 || !options.best.empty()))
        throw UsageError("--schedule plateau, --early-stop and --best require evaluations; this program makes none");
    std::optional<lockstep::CheckpointLock> lock;
    if (!options.save.empty() && options.is_rank0()) lock.emplace(options.save);
    require_writable(options.json);
    const auto schedule = schedule_of(options, training.optimizer, loader.batches());
    const auto rates = rates_of_flags(options);
    std::optional<lockstep::ReduceLROnPlateau> plateau;
    if (options.schedule.name == "plateau")
        plateau.emplace(training.optimizer,
                        lockstep::ReduceLROnPlateauOptions{.maximize = training.score.higher_is_better,
                                                           .factor = options.schedule.gamma,
                                                           .patience = options.schedule.patience,
                                                           .min_lr = options.schedule.lowest});
    Beginning begin = begin_run(options, model, training.optimizer);
    lockstep::RunState& state = begin.state;
    state.metadata = training.metadata;
    std::map<std::string, std::string> facts = training.facts;
    facts.merge(facts_of(options, state, model.shards()));
    keep_facts_of_finished(options, state, facts);
    std::vector<lockstep::GradientClip> clip;
    if (options.clip > 0) clip.emplace_back(lockstep::ClipGradNorm{.max_norm = options.clip});
    // f16 needs scaling because of its small range; bf16 has the range of f32.
    lockstep::GradScaler scaler({.enabled = options.autocast() == lockstep::DType::f16});
    lockstep::Runner runner(
        model, training.optimizer, loader, loss,
        {.epochs = static_cast<std::uint64_t>(options.epochs),
         .steps = options.steps,
         .facts = facts,
         .may_change = options.allow_changed,
         .step = {
             .accumulation_steps = options.accumulation_steps, .clip = clip, .scaler = &scaler, .rates = rates.get()}});
    const std::string changes = accepted_changes(options, state, runner.facts(), loader.options().batch_size);
    state.seed = std::stoull(facts.at("seed"));
    runner.resume_from(state);
    const lockstep::StopSignals signals(options.stop_signals);
    runner.stop_on(signals);

    const auto what = fmt::format("{} rows per step in {} {}, {} per epoch", loader.options().batch_size,
                                  model.shards(), model.shards() == 1 ? "shard" : "shards", loader.rows());
    if (training.evaluate)
        runner.add(lockstep::Evaluation(training.score.name, training.evaluate, training.evaluations));
    RunReport* report = &runner.add(RunReport(name, options, model.devices(),
                                              {what, rates_of(training.optimizer), loader.rows(), training.unit,
                                               training.score, changes, begin.has_only_weights},
                                              state.steps));
    runner.add(lockstep::LogRun(report->log().events()));
    if (training.log_evaluation && !options.log_dir.empty()) runner.add(LogEvaluations(training, *report));
    // After the evaluation, which reports the rate of the previous steps.
    if (schedule)
        runner.add(lockstep::FollowSchedule(*schedule, options.schedule.name == "one-cycle"
                                                           ? lockstep::ScheduleBy::step
                                                           : lockstep::ScheduleBy::epoch));
    if (plateau) runner.add(lockstep::FollowPlateau(*plateau, training.score.name));
    if (options.early_stop > 0)
        runner.add(lockstep::StopEarly(training.score.name, options.early_stop, 0, training.score.higher_is_better));
    std::filesystem::path saved = options.save;
    if (!options.save.empty())
        runner
            .add(lockstep::SaveCheckpoints({.file = options.save,
                                            .every_steps = options.save_every.steps,
                                            .every_epochs = options.save_every.epochs,
                                            .keep = options.keep,
                                            .best = options.best,
                                            .score = options.best.empty() ? "" : training.score.name,
                                            .higher_is_better = training.score.higher_is_better,
                                            .interrupted = interrupted_file(options.save)}))
            .on_save = [&](const auto& file) {
            if (file != options.best) saved = file;
            report->line(fmt::format("saved {}", file.string()));
        };
    runner.run();

    if (options.early_stop > 0 && runner.stopped() == 0)
        report->line(fmt::format("stopped early: {} has not improved for {} evaluations", training.score.name,
                                 options.early_stop));
    Figures& figures = report->figures();
    figures.samples_per_second = runner.rows_per_second();
    figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    figures.algorithms = model.engine().algorithms();
    program::report(options, figures, model.devices());
    const int signal = runner.stopped().value_or(0);
    if (signal == 0) return std::nullopt;
    return Stop{signal,
                options.is_rank0() ? resume_hint(saved, signal, static_cast<std::int64_t>(runner.state().steps)) : ""};
}

}  // namespace program
