// The training loop: epochs over a loader with losses read later, so that the host never waits for the step that it
// has just enqueued.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/summary.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/parallel/step_report.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/stop_signals.h"

namespace lockstep {

/// What hears of every step: any callable. One that returns a bool ends the training with `false`.
class StepCallback {
public:
    StepCallback() = default;
    template <class Callable>
    requires(!std::is_same_v<Callable, StepCallback> && std::is_invocable_v<Callable&, const StepReport&>)
        StepCallback(Callable call)  // NOLINT(google-explicit-constructor)
        : call_([call = std::move(call)](const StepReport& step) mutable {
              if constexpr (std::is_void_v<std::invoke_result_t<Callable&, const StepReport&>>) {
                  call(step);
                  return true;
              } else {
                  return static_cast<bool>(call(step));
              }
          }) {}
    StepCallback(const std::function<void(const StepReport&)>& call) {  // NOLINT(google-explicit-constructor)
        if (call)
            call_ = [call](const StepReport& step) {
                call(step);
                return true;
            };
    }

    /// Whether to go on.
    bool operator()(const StepReport& step) const { return !call_ || call_(step); }

private:
    std::function<bool(const StepReport&)> call_;
};

/// Counts rows a second of training alone: the first two steps (tracing, first memory) and pauses are left out.
class Throughput {
public:
    void resume() { began_ = Clock::now(); }
    void pause() {
        seconds_ = seconds();
        began_.reset();
    }
    /// A step was enqueued. True when the devices must rest now, for counting begins (call `resume` after that).
    bool step() { return ++enqueued_ == warm_up; }
    /// A step is done. Rows count from here on: those that are only enqueued would make a rate of a few steps too high.
    void done(std::int64_t rows) {
        if (++done_ > warm_up) rows_ += rows;
    }
    /// 0 while nothing has been counted.
    double rows_per_second() const { return seconds() > 0 ? static_cast<double>(rows_) / seconds() : 0; }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::int64_t warm_up = 2;
    /// With those since `resume`, for who asks between two steps.
    double seconds() const {
        return enqueued_ >= warm_up && began_ ? seconds_ + std::chrono::duration<double>(Clock::now() - *began_).count()
                                              : seconds_;
    }
    std::optional<Clock::time_point> began_;  // none in a pause
    double seconds_ = 0;
    std::int64_t rows_ = 0, enqueued_ = 0, done_ = 0;
};

/// One epoch at a time over a loader whose rows are (input, target).
template <class Model, class Data, class LossFunction>
class Trainer {
public:
    /// Keeps references to model, optimizer and loader. `on_step` is called in order, about two steps later, and ends
    /// the training where it returns false: the steps that are under way count. Every step goes as `how` says.
    Trainer(Model& model, Optimizer& optimizer, Loader<Data>& loader, LossFunction loss, StepCallback on_step = {},
            const StepOptions& how = {})
        : model_(model),
          optimizer_(optimizer),
          loader_(loader),
          loss_(std::move(loss)),
          on_step_(std::move(on_step)),
          how_(how) {
        const std::vector<std::string> settings = optimizer.setting_names();
        has_momentum_ = std::find(settings.begin(), settings.end(), "momentum") != settings.end();
    }

    /// Continues the count of steps of an earlier run.
    void set_steps(std::int64_t steps) { steps_ = steps; }
    std::int64_t steps() const { return steps_; }

    /// Called with the number of every step before it is enqueued.
    void before_step(std::function<void(std::int64_t step)> call) { before_step_ = std::move(call); }
    /// Training ends when one of the signals comes to any of the processes. Keeps the reference.
    void stop_on(const StopSignals& stop) { signals_ = &stop; }
    /// Why the last run() ended, where the callback or a signal wanted that: the signal, or 0. Where several processes
    /// train, what one of them wants ends all of them after the same step, with the same answer here.
    std::optional<int> stopped() const { return stopped_; }

    /// Trains the batches of `epoch` from `first_batch` on, at most until `last_step` steps have been made in all or
    /// somebody stops them. Waits for them at its end. Returns the number of the batch that comes next. Throws what
    /// steps and loader throw. Where several processes train, it is collective.
    std::int64_t run(std::uint64_t epoch, std::int64_t first_batch = 0,
                     std::optional<std::int64_t> last_step = std::nullopt) {
        model_.train();
        stopped_.reset();
        enough_ = reports_ = false;
        std::int64_t batch = first_batch;
        throughput_.resume();
        auto batches = loader_.epoch(epoch, first_batch);
        for (auto& [input, target] : batches) {
            if (last_step && steps_ >= *last_step) break;
            if ((stopped_ = model_.engine().stop_before_step(wish()))) break;
            if (before_step_) before_step_(steps_);
            StepLoss loss = model_.step(optimizer_, input, target, loss_, how_);
            behind_.push_back(
                {{epoch, steps_, input.rows(), 0, optimizer_.lr(), has_momentum_ ? optimizer_.setting("momentum") : 0,
                  how_.rates ? how_.rates->gain() : 1},
                 std::move(loss)});
            ++steps_;
            ++batch;
            if (throughput_.step()) {
                model_.synchronize();
                throughput_.resume();
            }
            while (behind_.size() > in_flight) report();
        }
        model_.synchronize();
        throughput_.pause();
        while (!behind_.empty()) report();
        if (!stopped_) stopped_ = model_.engine().agree_on_stop(wish());
        return batch;
    }

    /// Waits for the steps that have been enqueued, and calls the callback for them. Nothing within the callback.
    void report_steps() {
        while (!behind_.empty() && !reports_) report();
    }

    /// Rows a second of all training so far.
    double rows_per_second() const { return throughput_.rows_per_second(); }

private:
    static constexpr std::size_t in_flight = 3;  // losses of older steps are there without waiting
    void report() {
        auto [done, loss] = std::move(behind_.front());
        behind_.pop_front();
        done.loss = loss.item();
        if (how_.scaler) how_.scaler->note_step(loss.skipped());
        throughput_.done(done.rows);
        reports_ = true;
        const bool goes_on = on_step_(done);
        reports_ = false;
        if (!goes_on) enough_ = true;
    }
    std::optional<int> wish() const {
        const std::optional<int> signal = signals_ ? signals_->signal() : std::nullopt;
        return signal || !enough_ ? signal : 0;
    }

    Model& model_;
    Optimizer& optimizer_;
    Loader<Data>& loader_;
    LossFunction loss_;
    StepCallback on_step_;
    StepOptions how_;
    std::function<void(std::int64_t)> before_step_;
    const StopSignals* signals_ = nullptr;
    bool enough_ = false;  // the callback has said so
    bool reports_ = false;
    bool has_momentum_ = false;
    std::optional<int> stopped_;
    std::int64_t steps_ = 0;
    Throughput throughput_;
    std::deque<std::pair<StepReport, StepLoss>> behind_;
};

/// The share (0 to 1) of rows of `loader`, pairs (input, class), whose largest output is that of their class. Computed
/// in evaluation mode; every module has its own mode again afterwards, after an exception too. Where several processes
/// train together each looks at its rows, and all get the share of all rows.
template <class Model, class Data>
double accuracy(Model& model, Loader<Data>& loader) {
    const NoGrad no_grad;
    const detail::EvaluationScope evaluation(model.module());
    std::int64_t right = 0, rows = 0;
    for (auto& [input, target] : loader.epoch(0)) {
        const auto found = argmax(model.forward(input), 1).template to_vector<std::int64_t>();
        const auto wanted = target.gathered().template to_vector<std::int64_t>();
        for (std::size_t i = 0; i < wanted.size(); ++i) right += found[i] == wanted[i] ? 1 : 0;
        rows += std::ssize(wanted);
    }
    right = model.engine().sum_over_ranks(right);
    rows = model.engine().sum_over_ranks(rows);
    return static_cast<double>(right) / static_cast<double>(rows);
}

}  // namespace lockstep
