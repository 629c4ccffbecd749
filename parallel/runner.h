// The loop of a training run: epochs of a loader, or so many steps of them, with hooks.
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
#include <memory>
#include <optional>
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
    std::uint64_t epochs = (std::numeric_limits<std::uint64_t>::max)();  ///< of the whole run
    std::optional<std::int64_t> steps = std::nullopt;  ///< of the whole run: it ends by what comes first
    StepOptions step = {};  ///< of every step; the states of its scaler and rates are kept in checkpoints
};

/// Trains on a loader whose rows are (input, target).
template <class Model, class Data, class LossFunction>
class Runner final : public Run {
public:
    /// Keeps references to model, optimizer and loader. Throws InvalidArgument where neither epochs nor steps are
    /// given.
    Runner(Model& model, Optimizer& optimizer, Loader<Data>& loader, LossFunction loss, const RunnerOptions& options)
        : model_(model),
          optimizer_(optimizer),
          loader_(loader),
          options_(options),
          trainer_(
              model, optimizer, loader, std::move(loss), [this](const StepReport& step) { return tell(step); },
              options.step) {
        if (options.epochs == (std::numeric_limits<std::uint64_t>::max)() && !options.steps)
            throw InvalidArgument("Runner: give a number of epochs or of steps");
        trainer_.before_step([this](std::int64_t step) {
            state_.steps = static_cast<std::uint64_t>(step);
            state_.batch = step - first_step_;
            for (const auto& hook : hooks_) hook->before_step(*this);
        });
    }

    /// Called after the hooks added before it. Returns the one that is kept.
    template <class Hook>
    Hook& add(Hook hook) {
        auto kept = std::make_unique<Hook>(std::move(hook));
        Hook& result = *kept;
        hooks_.push_back(std::move(kept));
        return result;
    }
    /// The run goes on from there, as load_checkpoint returned it. Throws as restore_scaler and
    /// restore_rates.
    void go_on_from(const RunState& state) {
        if (options_.step.scaler) restore_scaler(*options_.step.scaler, state);
        if (options_.step.rates) restore_rates(*options_.step.rates, state);
        state_ = state;
        trainer_.set_steps(static_cast<std::int64_t>(state.steps));
    }
    /// Ends the run when one of the signals comes to any of the processes. Keeps the reference.
    void stop_on(const StopSignals& stop) { trainer_.stop_on(stop); }

    /// Where several processes train, it is collective. Throws what steps, loader and hooks throw.
    void run() {
        state_.batch_size = loader_.options().batch_size;
        each(&RunHook::before_run);
        while (!ended_ && !stopped_ && state_.epoch < options_.epochs && (!is_complete() || epoch_is_over()))
            train_epoch();
        if (ended_ && !stopped_) stopped_ = 0;
        each(&RunHook::after_run);
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
    void each(Call call) {
        for (const auto& hook : hooks_) (hook.get()->*call)(*this);
    }
    /// What is about to be saved holds all that hooks, scaler and rates want to find again.
    void prepare_to_save() {
        each(&RunHook::before_save);
        if (options_.step.scaler) keep_scaler(*options_.step.scaler, state_);
        if (!options_.step.rates) return;
        model_.synchronize();
        keep_rates(*options_.step.rates, state_);
    }
    bool tell(const StepReport& step) {
        for (const auto& hook : hooks_) hook->after_step(*this, step);
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
        while (!ended_ && !stopped_ && !epoch_is_over() && !is_complete()) {
            const auto pause = next_pause();
            state_.batch = trainer_.run(state_.epoch, state_.batch, pause);
            state_.steps = static_cast<std::uint64_t>(trainer_.steps());
            stopped_ = trainer_.stopped();
            if (!stopped_ && pause && trainer_.steps() >= *pause) each(&RunHook::at_pause);
        }
        // Who is stopped after the last batch leaves what comes after an epoch to the run that goes on.
        if (!epoch_is_over() || stopped_) return;
        ++state_.epoch;
        state_.batch = 0;
        each(&RunHook::after_epoch);
    }

    Model& model_;
    Optimizer& optimizer_;
    Loader<Data>& loader_;
    RunnerOptions options_;
    Trainer<Model, Data, LossFunction> trainer_;
    std::vector<std::unique_ptr<RunHook>> hooks_;
    std::int64_t first_step_ = 0;  // the one of the epoch's first batch
};

}  // namespace lockstep
