// A whole run of a sample: load, train, evaluate, save, report.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/dataset.h"
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

/// Sets the optimizer's settings of a resumed run that flags override, and returns those that change: "--lr 0.1 instead
/// of 0.01". A resumed schedule determines the rate itself: throws UsageError if it started with another rate than
/// --lr.
std::vector<std::string> override_settings(const Options& options, const lockstep::RunState& state,
                                           lockstep::Optimizer& optimizer);
/// Stores the settings that flags give, and in a new run the others, in the state for override_settings.
void record_settings(const Options& options, bool resumes, lockstep::RunState& state);

/// Values that determine the result of every program, by flag name, in addition to those that Runner records.
std::map<std::string, std::string> facts_of(const Options& options);
/// A fact of Runner that is not a flag: it changes with "amp" only.
inline constexpr const char* follows_amp = "scaler";

/// A finished run is evaluated and saved with any flags: its facts do not change.
void keep_facts_of_finished(const Options& options, const lockstep::RunState& state,
                            std::map<std::string, std::string>& facts);

/// The random seed among the facts, which are those of the checkpoint if its run is finished. Throws DataError unless
/// it is a number.
std::uint64_t seed_in(const std::map<std::string, std::string>& facts);

/// Start of a run.
struct Beginning {
    lockstep::RunState state;
    bool has_only_weights = false;                   ///< whether --load has weights but no run state
    std::vector<std::string> changed_settings = {};  ///< as override_settings
};

/// "continues with --lr 0.1 instead of 0.01, --seed 3 instead of 1", for changed settings and for the changes that
/// --allow-changed permits; empty: no changes. Throws UsageError for other changes, and for another batch size within
/// an epoch.
std::string accepted_changes(const Options& options, const Beginning& begin,
                             const std::map<std::string, std::string>& facts, std::int64_t batch_size);

/// "4 rows, 1f3a...": identifies a dataset by its number of rows and the digest of all their bytes.
template <lockstep::RowReader Data>
std::string describe_data(const Data& data) {
    Digest digest;
    constexpr std::int64_t at_once = 256;
    const auto fields = data.fields();
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::byte*> to;
    for (const lockstep::RowField& field : fields)
        to.push_back(memory.emplace_back(field.row_bytes() * static_cast<std::size_t>(at_once)).data());
    for (std::int64_t first = 0; first < data.size(); first += at_once) {
        std::vector<std::int64_t> rows(static_cast<std::size_t>(std::min(at_once, data.size() - first)));
        std::iota(rows.begin(), rows.end(), first);
        data.read(rows, to);
        for (std::size_t i = 0; i < fields.size(); ++i)
            digest.add(std::span<const std::byte>(to[i], rows.size() * fields[i].row_bytes()));
    }
    return fmt::format("{} rows, {:016x}", data.size(), digest.value());
}

/// The schedule of --schedule; null for schedules that are stepped elsewhere. `batches`: batches per epoch.
std::unique_ptr<lockstep::LRSchedule> schedule_of(const Options& options, lockstep::Optimizer& optimizer,
                                                  std::int64_t batches);
/// The rule of --rates; null: none.
std::unique_ptr<lockstep::AdaptiveRates> rates_of_flags(const Options& options);

/// Loads the checkpoint of --load into model and optimizer.
template <class Model>
Beginning begin_run(const Options& options, Model& model, lockstep::Optimizer& optimizer) {
    Beginning begin;
    lockstep::RunState& state = begin.state;
    state.seed = options.seed;
    if (options.load.empty()) {
        record_settings(options, false, state);
        return begin;
    }
    const auto saved = lockstep::load_checkpoint(model, optimizer, options.load);
    begin.has_only_weights = !saved;
    if (saved) {
        state = *saved;
        // Files of earlier versions have no facts.
        state.fields.try_emplace("fact seed", std::to_string(state.seed));
        // Settings are those of the run unless flags override them.
        begin.changed_settings = override_settings(options, state, optimizer);
    }
    record_settings(options, !begin.has_only_weights, state);
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
    if (!training.evaluate && options.follows_score())
        throw UsageError("--schedule plateau, --early-stop and --best require evaluations; this program makes none");
    std::optional<lockstep::CheckpointLock> lock;
    if (!options.save.empty() && options.is_rank0()) lock.emplace(options.save);
    for (const auto* path : {&options.json, &options.trace}) require_writable(*path);
    if (options.is_rank0()) require_writable(options.best);
    if (!options.trace.empty()) model.engine().log_steps(options.trace_steps);
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
    facts.merge(facts_of(options));
    keep_facts_of_finished(options, state, facts);
    std::vector<std::string> may_change = options.allow_changed;
    may_change.emplace_back(follows_amp);
    std::vector<lockstep::GradientClip> clip;
    if (options.clip > 0) clip.emplace_back(lockstep::ClipGradNorm{.max_norm = options.clip});
    // f16 needs scaling because of its small range; bf16 has the range of f32.
    lockstep::GradScaler scaler({.enabled = options.autocast() == lockstep::DType::f16});
    lockstep::Runner runner(
        model, training.optimizer, loader, loss,
        {.epochs = static_cast<std::uint64_t>(options.epochs),
         .steps = options.steps,
         .facts = facts,
         .may_change = may_change,
         .step = {
             .accumulation_steps = options.accumulation_steps, .clip = clip, .scaler = &scaler, .rates = rates.get()}});
    const std::string changes = accepted_changes(options, begin, runner.facts(), loader.options().batch_size);
    state.seed = seed_in(facts);
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
        runner.add(lockstep::FollowSchedule(
            *schedule, options.schedule.is_by_steps() ? lockstep::ScheduleBy::step : lockstep::ScheduleBy::epoch));
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
    if (!options.trace.empty()) report_trace(options, model.engine().step_log());
    const int signal = runner.stopped().value_or(0);
    if (signal == 0) return std::nullopt;
    return Stop{signal,
                options.is_rank0() ? resume_hint(saved, signal, static_cast<std::int64_t>(runner.state().steps)) : ""};
}

}  // namespace program
