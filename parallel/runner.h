// The loop of a training run: a number of epochs of a loader, or a number of steps, with hooks.
//
//     ls::Runner runner(model, adam, train, ls::cross_entropy, {.epochs = 10});
//     runner.add(ls::Evaluation("accuracy", [&] { return ls::accuracy(model, test); }));
//     runner.add(ls::SaveCheckpoints({.file = "net.safetensors", .every_epochs = 1}));
//     runner.run();
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/checkpoint_writer.h"
#include "lockstep/parallel/run.h"
#include "lockstep/parallel/step_state.h"
#include "lockstep/parallel/training_loop.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

struct RunnerOptions {
    /// Number of epochs of the whole run, including those before a resume.
    std::uint64_t epochs = (std::numeric_limits<std::uint64_t>::max)();
    /// Number of steps of the whole run. It ends at the limit that it reaches first.
    std::optional<std::int64_t> steps = std::nullopt;
    /// Settings that determine the result, by name, in addition to those that Runner records itself: "rows",
    /// "batch-size", "seed" of a shuffled order, "accumulation-steps", "clip" and "rates". They are stored in
    /// checkpoints, and resuming with a different value is an error.
    std::map<std::string, std::string> facts = {};
    /// Names of facts that a resume may change; later checkpoints contain the new value.
    std::vector<std::string> may_change = {};
    StepOptions step = {};  ///< options of every step; the states of its scaler and rates are stored in checkpoints
};

/// Trains on a loader whose rows are (input, target).
template <class Model, class Data, class LossFunction>
class Runner final : public Run {
public:
    /// Stores references to model, optimizer and loader. Throws InvalidArgument if neither epochs nor steps are set.
    Runner(Model& model, Optimizer& optimizer, Loader<Data>& loader, LossFunction loss, const RunnerOptions& options)
        : model_(model),
          optimizer_(optimizer),
          loader_(loader),
          options_(options),
          trainer_(
              model, optimizer, loader, std::move(loss), [this](const StepReport& step) { return tell(step); },
              options.step) {
        if (options.epochs == (std::numeric_limits<std::uint64_t>::max)() && !options.steps)
            throw InvalidArgument("Runner: neither epochs nor steps; expected a number of either");
        trainer_.before_step([this](std::int64_t step) {
            state_.steps = static_cast<std::uint64_t>(step);
            state_.batch = step - first_step_;
            each(&RunHook::save_if_due);
            each(&RunHook::before_step);
        });
    }

    /// Adds a hook, which is called after those added before it, and returns a reference to the stored one. A hook that
    /// another hook adds during the run is called from the next event on, without `before_run`.
    template <class Hook>
    Hook& add(Hook hook) {
        auto kept = std::make_unique<Hook>(std::move(hook));
        Hook& result = *kept;
        hooks_.push_back(std::move(kept));
        return result;
    }
    /// All facts that determine the result: RunnerOptions::facts and those that Runner records itself.
    std::map<std::string, std::string> facts() const {
        const LoaderOptions& order = loader_.options();
        std::map<std::string, std::string> all = options_.facts;
        all.try_emplace("rows", std::to_string(loader_.rows()));
        all.try_emplace("batch-size", std::to_string(order.batch_size));
        if (order.shuffle) all.try_emplace("seed", std::to_string(order.seed));
        all.try_emplace("accumulation-steps", std::to_string(options_.step.accumulation_steps));
        all.try_emplace("clip", detail::text_of(options_.step.clip));
        all.try_emplace("rates", options_.step.rates ? options_.step.rates->name() : "none");
        return all;
    }
    /// Resumes from `state`, as returned by load_checkpoint. Throws as restore_scaler and restore_rates;
    /// InvalidArgument for facts that have changed and are not in `may_change`, and for a different batch size within
    /// an epoch.
    void go_on_from(const RunState& state) {
        detail::require_same_facts(state, facts(), options_.may_change);
        if (options_.step.scaler) restore_scaler(*options_.step.scaler, state);
        if (options_.step.rates) restore_rates(*options_.step.rates, state);
        if (state.batch > 0 && state.batch_size > 0 && state.batch_size != loader_.options().batch_size)
            throw InvalidArgument("Runner: " + std::to_string(loader_.options().batch_size) +
                                  " rows a step; expected " + std::to_string(state.batch_size) +
                                  ", because the run was stopped within an epoch with that batch size");
        state_ = state;
        scores_ = detail::scores_in(state);
        trainer_.set_steps(static_cast<std::int64_t>(state.steps));
    }
    /// Ends the run when any process receives one of the signals. Stores the reference.
    void stop_on(const StopSignals& stop) { trainer_.stop_on(stop); }

    /// Trains until the run ends. Collective. Throws the errors of steps, loader and hooks.
    void run() {
        state_.batch_size = loader_.options().batch_size;
        for (const auto& [name, value] : facts()) state_.fields[detail::fact + name] = value;
        over_ = false;
        rate_setters_.clear();
        if (options_.step.rates) note_rate_setter(options_.step.rates->name(), true);
        each(&RunHook::before_run);
        while (!ended_ && !stopped_ && state_.epoch < options_.epochs && (!is_complete() || has_pause_left()))
            train_epoch();
        if (ended_ && !stopped_) stopped_ = 0;
        over_ = true;
        each(&RunHook::evaluate);
        each(&RunHook::after_run);
        each(&RunHook::save_if_due);
    }

    std::int64_t batches_per_epoch() const override { return loader_.batches(); }
    std::int64_t planned_steps() const override {
        const auto left = static_cast<double>(options_.epochs - (std::min)(options_.epochs, state_.epoch));
        std::int64_t planned = (std::numeric_limits<std::int64_t>::max)();
        if (left * static_cast<double>(loader_.batches()) < 9e18)
            planned = static_cast<std::int64_t>(state_.steps) +
                      (std::max<std::int64_t>)(0, static_cast<std::int64_t>(left) * loader_.batches() - state_.batch);
        return options_.steps ? (std::min)(*options_.steps, planned) : planned;
    }
    double rows_per_second() const override { return trainer_.rows_per_second(); }
    Optimizer& optimizer() override { return optimizer_; }
    bool leads() const override { return detail::writes_files(model_); }
    void save(const std::filesystem::path& checkpoint) override {
        prepare_to_save();
        save_checkpoint(model_, optimizer_, state_, checkpoint);
    }
    void save(CheckpointWriter& writer, const std::vector<std::filesystem::path>& checkpoints) override {
        prepare_to_save();
        writer.save(model_, optimizer_, state_, checkpoints);
    }

private:
    using Call = void (RunHook::*)(Run&);
    /// A hook may add other hooks, which may move the vector but not the hooks.
    void each(Call call) {
        const std::size_t count = hooks_.size();
        for (std::size_t i = 0; i < count; ++i) (hooks_[i].get()->*call)(*this);
    }
    bool is_stopped_by_signal() const { return stopped_.value_or(0) != 0; }
    void pause() {
        state_.fields.erase(detail::pause_left);
        each(&RunHook::evaluate);
        each(&RunHook::at_pause);
        each(&RunHook::save_if_due);
    }
    /// Hooks, scaler and rates write their resume data to the state. Hooks are called for all steps that it counts.
    void prepare_to_save() {
        trainer_.report_steps();
        each(&RunHook::before_save);
        if (options_.step.scaler) keep_scaler(*options_.step.scaler, state_);
        if (!options_.step.rates) return;
        model_.synchronize();
        keep_rates(*options_.step.rates, state_);
    }
    bool tell(const StepReport& step) {
        const std::size_t count = hooks_.size();
        for (std::size_t i = 0; i < count; ++i) hooks_[i]->after_step(*this, step);
        return !ended_;
    }
    std::optional<std::int64_t> next_pause() const {
        std::optional<std::int64_t> first = options_.steps;
        for (const auto& hook : hooks_)
            if (const auto pause = hook->next_pause(*this)) first = (std::min)(*pause, first.value_or(*pause));
        return first;
    }
    bool epoch_is_over() const { return state_.batch > 0 && state_.batch >= loader_.batches(); }
    void train_epoch() {
        if (!epoch_is_over()) each(&RunHook::before_epoch);
        first_step_ = static_cast<std::int64_t>(state_.steps) - state_.batch;
        if (state_.fields.contains(detail::pause_left)) pause();
        while (!ended_ && !stopped_ && !epoch_is_over() && !is_complete()) {
            const auto next = next_pause();
            state_.batch = trainer_.run(state_.epoch, state_.batch, next);
            state_.steps = static_cast<std::uint64_t>(trainer_.steps());
            stopped_ = trainer_.stopped();
            if (!next || trainer_.steps() < *next) continue;
            if (is_stopped_by_signal())
                state_.fields[detail::pause_left] = "1";
            else
                pause();
        }
        // After a signal, the end of an epoch is handled by the run that resumes this one.
        if (!epoch_is_over() || is_stopped_by_signal()) return;
        ++state_.epoch;
        state_.batch = 0;
        each(&RunHook::evaluate);
        each(&RunHook::after_epoch);
        each(&RunHook::save_if_due);
    }

    Model& model_;
    Optimizer& optimizer_;
    Loader<Data>& loader_;
    RunnerOptions options_;
    Trainer<Model, Data, LossFunction> trainer_;
    std::vector<std::unique_ptr<RunHook>> hooks_;
    std::int64_t first_step_ = 0;  // the step of the epoch's first batch
};

}  // namespace lockstep
