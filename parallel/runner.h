// The loop of a training run: a number of epochs of a loader, or a number of steps, with hooks.
//
//     ls::Runner runner(model, adam, train, ls::cross_entropy, {.epochs = 10});
//     runner.add(ls::Evaluation("accuracy", [&] { return ls::accuracy(model, test); }));
//     runner.add(ls::SaveCheckpoints({.file = "net.safetensors", .every_epochs = 1}));
//     runner.run();
//
// run_hooks.h has predefined hooks. A custom hook overrides the events that it handles:
//
//     struct PrintLoss : ls::RunHook {
//         void after_step(ls::Runner&, const ls::StepReport& step) override { fmt::print("{}\n", step.loss); }
//     };
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/ops/summary.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/checkpoint_writer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/parallel/run_state.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/stop_signals.h"

namespace lockstep {

class Runner;
class Throughput;

/// A completed step.
struct StepReport {
    std::uint64_t epoch = 0;
    std::int64_t step = 0;  ///< counted from 0 over the whole run
    std::int64_t rows = 0;
    double loss = 0;
    // The following settings are those of this step; optimizer and adaptive rates may already have those of a later
    // step.
    double lr = 0;        ///< learning rate of the optimizer's first group
    double momentum = 0;  ///< momentum of that group; 0 for an optimizer without this setting
    double gain = 1;      ///< AdaptiveRates::gain
};

/// Callbacks of a run, called in the order in which hooks were added. "Between steps" means that no step is in flight
/// and the model may be used. An exception from a hook ends the run. At a pause, at the end of an epoch and at the end
/// of the run, all hooks get `evaluate`, then `at_pause`, `after_epoch` or `after_run`, then `save_if_due`. The order
/// of hooks therefore does not affect the content of a checkpoint. If a signal or a stop token stops the run at a pause
/// or at the end of an epoch, the run that resumes it makes those calls. If one of the calls throws, a second
/// `Runner::run` repeats all of them.
class RunHook {
public:
    RunHook() = default;
    RunHook(const RunHook&) = default;
    RunHook& operator=(const RunHook&) = default;
    RunHook(RunHook&&) = default;
    RunHook& operator=(RunHook&&) = default;
    virtual ~RunHook() = default;
    /// Before a checkpoint is saved. The hook stores the data that it needs to resume in fields().
    virtual void before_save(Runner& run) { static_cast<void>(run); }
    /// Between steps, before the first. Called by every `Runner::run`: see Runner::origin.
    virtual void before_run(Runner& run) { static_cast<void>(run); }
    /// Between steps, before the first step of an epoch; in a resumed epoch, before the first remaining step.
    virtual void before_epoch(Runner& run) { static_cast<void>(run); }
    /// Before a step is enqueued, while earlier ones may be in flight.
    virtual void before_step(Runner& run) { static_cast<void>(run); }
    /// When the loss of a step is known, about two steps later.
    virtual void after_step(Runner& run, const StepReport& step) {
        static_cast<void>(run);
        static_cast<void>(step);
    }
    /// After steps were refused, before `run` throws their error: state() is again that before the first of them. The
    /// hook restores what its `before_step` has changed since. Called in reverse order of the hooks.
    virtual void after_refusal(Runner& run) { static_cast<void>(run); }
    /// Number of steps after which the run pauses next; nullopt: never. The run throws InvalidArgument unless it is
    /// greater than that of state().
    virtual std::optional<std::int64_t> next_pause(const Runner& run) const {
        static_cast<void>(run);
        return std::nullopt;
    }
    /// Between steps: computes the scores at this point of the run, if they are due.
    virtual void evaluate(Runner& run) { static_cast<void>(run); }
    /// Between steps, when the run has paused for any hook.
    virtual void at_pause(Runner& run) { static_cast<void>(run); }
    /// Between steps, after the last step of an epoch; state() is already at the next epoch.
    virtual void after_epoch(Runner& run) { static_cast<void>(run); }
    /// Between steps, after the last step. Also called if the run was stopped, but not if it ends by an exception.
    virtual void after_run(Runner& run) { static_cast<void>(run); }
    /// Saves a checkpoint if one is due. Called between steps, after all other calls for that point of the run, and
    /// before each step, before `before_step` of any hook.
    virtual void save_if_due(Runner& run) { static_cast<void>(run); }

private:
    friend class Runner;
    detail::MoveMark mark_;
};

/// Options of a Runner.
struct RunnerOptions {
    /// Number of epochs of the whole run, including those before a resume.
    std::uint64_t epochs = (std::numeric_limits<std::uint64_t>::max)();
    /// Number of steps of the whole run. It ends at the limit that it reaches first.
    std::optional<std::int64_t> steps = std::nullopt;
    /// Settings that determine the result, by name, in addition to those that Runner records itself: "rows",
    /// "batch-size", "order" ("sequential", "shuffled", "sampler" or "batch sampler"), "drop-last", and "seed" of a
    /// shuffled order; "accumulation-steps", "clip", "rates", "scaler" and "skip-nonfinite" of `step`; "shards",
    /// "deterministic", "reduction", "allow-tf32", "convolution" ("direct" or "automatic"), "nan-policy" and "amp" (the
    /// autocast type) of the engine. They are stored in checkpoints, and resuming with a different value is an error.
    /// The number of shards may change if it is one per device before and after.
    std::map<std::string, std::string> facts = {};
    /// Names of facts that a resume may change; later checkpoints contain the new value.
    std::vector<std::string> may_change = {};
    StepOptions step = {};  ///< options of every step; the states of its scaler and rates are stored in checkpoints
};

/// A fact whose value differs between a run and the run that resumes it.
struct ChangedFact {
    std::string name, before, now;
};

/// The facts in `now` whose value in the state differs. A fact that the state lacks (an earlier version) is not
/// reported.
std::vector<ChangedFact> changed_facts(const RunState& state, const std::map<std::string, std::string>& now);

/// The result of an evaluation.
struct Score {
    double value = 0;
    std::uint64_t steps = 0;  ///< number of steps before the evaluation
};

namespace detail {

/// Prefixes of the fields of a state that hold facts and scores.
inline constexpr const char* fact = "fact ";
inline constexpr const char* score_field = "score ";

}  // namespace detail

/// Trains on a loader whose rows are (input, target). Losses are read later, so that the host never waits for the step
/// that it has just enqueued. All processes of a job must have the same hooks, and each hook must make the same
/// decisions on all of them.
class Runner {
public:
    /// Stores references to model, optimizer and loader. Throws InvalidArgument if neither epochs nor steps are set.
    template <class Model, class Data, class LossFunction>
    Runner(Model& model, Optimizer& optimizer, Loader<Data>& loader, LossFunction loss, const RunnerOptions& options)
        : Runner(std::make_unique<TypesOf<Model, Data, LossFunction>>(model, optimizer, loader, std::move(loss),
                                                                      options.step),
                 optimizer, options) {}
    ~Runner();
    Runner(const Runner&) = delete;
    Runner& operator=(const Runner&) = delete;

    /// Adds a hook, which is called after those added before it, and returns a reference to the stored one. A hook that
    /// another hook adds during the run is called from the next event on, without `before_run`. Throws InvalidArgument
    /// for a hook that was moved from.
    template <class Hook>
    Hook& add(Hook hook) {
        static_cast<const RunHook&>(hook).mark_.require("RunHook");
        auto kept = std::make_unique<Hook>(std::move(hook));
        Hook& result = *kept;
        hooks_.push_back(std::move(kept));
        return result;
    }
    /// All facts that determine the result: RunnerOptions::facts and those that Runner records itself.
    std::map<std::string, std::string> facts() const;
    /// Resumes from `state`, as returned by load_checkpoint. Throws as restore_scaler and restore_rates;
    /// InvalidArgument for facts that have changed and are not in `may_change`, and for a different batch size within
    /// an epoch, and for a call by a hook of this run.
    void resume_from(const RunState& state);
    /// Ends the run when any process receives one of the signals. Stores the reference.
    void stop_on(const StopSignals& stop) { signals_ = &stop; }
    /// Ends the run as a signal does when a thread of any process calls `request_stop` of the token's source. Any
    /// thread may call it at any time, before the run as well. Steps that have been enqueued are completed. The run
    /// that resumes this one is bit-identical to an uninterrupted one.
    void stop_on(std::stop_token stop) { token_ = std::move(stop); }
    /// Trains until the run ends. Collective. Throws the errors of steps, loader and hooks, and InvalidArgument for a
    /// call by a hook of this run. After an error, state() counts the steps that the model has made, and a second call
    /// continues there. It repeats a step that was refused. A call after a run that was stopped continues as well.
    void run();

    // For hooks.

    /// Position of the run. Steps and batches count once they are enqueued.
    const RunState& state() const { return state_; }
    /// Fields for the program's own use, stored in checkpoints.
    std::map<std::string, std::string>& fields() { return state_.fields; }
    /// For hooks that read fields in `before_run`: number of calls of resume_from. If it is that of the previous
    /// `before_run`, this run continues, and the data of the hook are newer than the fields.
    std::uint64_t origin() const { return origin_; }
    std::int64_t batches_per_epoch() const;
    /// Total number of steps if the run ends as planned.
    std::int64_t planned_steps() const;
    bool is_complete() const { return static_cast<std::int64_t>(state_.steps) >= planned_steps(); }
    /// Whether no more steps follow and hooks are called for the end of the run.
    bool is_over() const { return over_; }
    /// Whether the run that this one resumes was stopped by a signal or a token at a pause or at the end of an epoch,
    /// before its hooks were called. They are called first.
    bool has_pending_pause() const;
    /// Rows per second of training, without evaluation and pauses; 0 in the first two steps.
    double rows_per_second() const;
    Optimizer& optimizer() { return optimizer_; }
    /// Whether this process prints and writes files: true on rank 0.
    bool is_rank0() const;

    /// The latest result of each evaluation, by name.
    const std::map<std::string, Score>& scores() const { return scores_; }
    void set_score(const std::string& name, double value) { scores_[name] = {value, state_.steps}; }

    /// For hooks, in `before_run`: declares that `name` sets the learning rate. Throws InvalidArgument if a hook of the
    /// same name does, or if there are several and one of them must be the only one.
    void note_rate_setter(const std::string& name, bool only_one);
    /// For hooks that store fields: a suffix for their names. Empty for the first call in a run with this `name`, then
    /// " 2", " 3" and so on.
    std::string suffix_for(const std::string& name);
    /// For hooks that save checkpoints, in `before_run`: declares a file by its name, in which "{epoch}" and "{step}"
    /// represent numbers. Throws InvalidArgument if another hook has declared one that can be the same file. `hook`
    /// identifies the hook, and `option` names the file in messages.
    void note_checkpoint(const RunHook& hook, const std::string& option, const std::filesystem::path& file);

    /// Ends the run as soon as possible: at once between steps, some steps later from `after_step`. For hooks; other
    /// threads use a stop token.
    void end() { ended_ = true; }
    /// For hooks, in `evaluate`: a stop token has interrupted the evaluation. The run ends without the other calls for
    /// this point, which the run that resumes it makes. All processes must call it for the same evaluation.
    void interrupt_evaluation() { stopped_ = stopped_by_token; }
    /// Why the run ended early: the signal's number, `stopped_by_token`, or 0 after `end`. With several processes, a
    /// request of any of them ends all of them after the same step, with the same answer here.
    std::optional<int> stopped() const { return stopped_; }

    /// Calls save_checkpoint with model, optimizer and state. Between steps or before a step; throws InvalidArgument in
    /// `after_step`, when later steps are in flight, and in `before_save`.
    void save(const std::filesystem::path& checkpoint);
    /// Saves the result of all steps so far in the background with `writer`. Throws InvalidArgument in the same cases.
    void save(CheckpointWriter& writer, const std::vector<std::filesystem::path>& checkpoints);

private:
    class Types;
    template <class Model, class Data, class LossFunction>
    class TypesOf;
    using Call = void (RunHook::*)(Runner&);
    struct Checkpoint {
        const RunHook* hook;
        std::string option;
        std::filesystem::path file;
    };

    Runner(std::unique_ptr<Types> types, Optimizer& optimizer, const RunnerOptions& options);
    void each(Call call);
    void pause();
    void prepare_to_save();
    std::optional<std::int64_t> next_pause() const;
    bool epoch_is_over() const;
    bool is_interrupted() const { return stopped_.value_or(0) != 0; }
    void train_epoch();
    void train_batches(std::optional<std::int64_t> last_step);
    bool begin_step();
    void end_step(std::int64_t rows, StepLoss loss);
    void report_step();
    void forget_refused();
    void end_epoch();
    std::optional<int> wish() const;

    std::unique_ptr<Types> types_;
    Optimizer& optimizer_;
    RunnerOptions options_;
    std::vector<std::unique_ptr<RunHook>> hooks_;
    const StopSignals* signals_ = nullptr;
    std::stop_token token_;
    bool has_momentum_ = false;

    RunState state_;
    std::uint64_t origin_ = 0;
    std::map<std::string, bool> rate_setters_;  // by name; true: must be the only one
    std::map<std::string, int> suffixes_;       // number of calls of suffix_for by name
    std::vector<Checkpoint> checkpoints_;       // files that hooks have declared
    std::map<std::string, Score> scores_;
    bool running_ = false, over_ = false, ended_ = false, returned_ = false;
    std::optional<int> stopped_;

    std::int64_t steps_ = 0;                 // enqueued
    std::int64_t first_step_ = 0;            // the step of the epoch's first batch
    std::optional<std::int64_t> last_step_;  // end of the steps that are being made
    std::optional<int> stop_;                // reason for an earlier end
    bool reports_ = false;                   // within after_step
    bool prepares_ = false;                  // within before_save
    std::unique_ptr<Throughput> throughput_;
    std::deque<std::pair<StepReport, StepLoss>> unreported_;
};

/// Access to model, loader and loss, whose types only the constructor knows.
class Runner::Types {
public:
    virtual ~Types() = default;
    virtual Engine& engine() = 0;
    virtual bool writes_files() const = 0;
    virtual const LoaderOptions& order() const = 0;
    virtual std::int64_t rows() const = 0;
    virtual std::int64_t batches() const = 0;
    /// Trains on the batches of `epoch`, from `first` on, until `run` begins none.
    virtual void train(std::uint64_t epoch, std::int64_t first, Runner& run) = 0;
    virtual void save(const RunState& state, const std::filesystem::path& checkpoint) = 0;
    virtual void save(const RunState& state, CheckpointWriter& writer,
                      const std::vector<std::filesystem::path>& checkpoints) = 0;
};

/// Calls that depend on the types of model, dataset and loss.
template <class Model, class Data, class LossFunction>
class Runner::TypesOf final : public Types {
public:
    TypesOf(Model& model, Optimizer& optimizer, Loader<Data>& loader, LossFunction loss, StepOptions options)
        : model_(model), optimizer_(optimizer), loader_(loader), loss_(std::move(loss)), options_(std::move(options)) {}
    Engine& engine() override { return model_.engine(); }
    bool writes_files() const override { return detail::writes_files(model_); }
    const LoaderOptions& order() const override { return loader_.options(); }
    std::int64_t rows() const override { return loader_.rows(); }
    std::int64_t batches() const override { return loader_.batches(); }
    void train(std::uint64_t epoch, std::int64_t first, Runner& run) override {
        model_.train();
        auto batches = loader_.epoch(epoch, first);
        for (auto& [input, target] : batches) {
            if (!run.begin_step()) break;
            run.end_step(input.rows(), model_.step(optimizer_, input, target, loss_, options_));
        }
    }
    void save(const RunState& state, const std::filesystem::path& checkpoint) override {
        save_checkpoint(model_, optimizer_, state, checkpoint);
    }
    void save(const RunState& state, CheckpointWriter& writer,
              const std::vector<std::filesystem::path>& checkpoints) override {
        writer.save(model_, optimizer_, state, checkpoints);
    }

private:
    Model& model_;
    Optimizer& optimizer_;
    Loader<Data>& loader_;
    LossFunction loss_;
    StepOptions options_;
};

namespace detail {

/// `accuracy`; nullopt if `stops`, called before each batch, returns true.
template <class Model, class Data, class Stops>
std::optional<double> accuracy_until(Model& model, Loader<Data>& loader, const Stops& stops) {
    const NoGrad no_grad;
    const EvaluationScope evaluation(model.module());
    std::int64_t right = 0, rows = 0;
    for (auto& [input, target] : loader.epoch(0)) {
        if (stops()) return std::nullopt;
        const auto found = argmax(model.forward(input), 1).template to_vector<std::int64_t>();
        const auto wanted = target.gathered().template to_vector<std::int64_t>();
        for (std::size_t i = 0; i < wanted.size(); ++i) right += found[i] == wanted[i] ? 1 : 0;
        rows += std::ssize(wanted);
    }
    right = model.engine().sum_over_ranks(right);
    rows = model.engine().sum_over_ranks(rows);
    return static_cast<double>(right) / static_cast<double>(rows);
}

}  // namespace detail

/// Fraction (0 to 1) of the rows of `loader`, pairs (input, class), whose largest output is that of their class. Runs
/// in evaluation mode; every module's mode is restored afterwards, even after an exception. With several processes,
/// each computes its own rows, and all get the fraction over all rows.
template <class Model, class Data>
double accuracy(Model& model, Loader<Data>& loader) {
    return *detail::accuracy_until(model, loader, [] { return false; });
}
/// The same until a thread requests a stop with the source of the token, which is checked before each batch; then
/// nullopt. With several processes, all pass a token, and a request of any of them stops all before the same batch.
template <class Model, class Data>
std::optional<double> accuracy(Model& model, Loader<Data>& loader, const std::stop_token& stop) {
    return detail::accuracy_until(model, loader,
                                  [&] { return model.engine().sum_over_ranks(stop.stop_requested() ? 1 : 0) > 0; });
}

}  // namespace lockstep
