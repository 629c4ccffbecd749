// The training loop: epochs over a loader, with losses read later, so that the host never waits for the step that it
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

/// Any callable that receives a report of every step. If it returns a bool, `false` ends the training.
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

    /// Whether to continue.
    bool operator()(const StepReport& step) const { return !call_ || call_(step); }

private:
    std::function<bool(const StepReport&)> call_;
};

/// Measures rows per second of training. Excludes the first two steps (tracing, first allocations) and pauses.
class Throughput {
public:
    void resume() { began_ = Clock::now(); }
    void pause() {
        seconds_ = seconds();
        began_.reset();
    }
    /// Counts an enqueued step. True if counting begins now: wait for the devices, then call `resume`.
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
    /// Including the time since `resume`, for calls between two steps.
    double seconds() const {
        return enqueued_ >= warm_up && began_ ? seconds_ + std::chrono::duration<double>(Clock::now() - *began_).count()
                                              : seconds_;
    }
    std::optional<Clock::time_point> began_;  // empty during a pause
    double seconds_ = 0;
    std::int64_t rows_ = 0, enqueued_ = 0, done_ = 0;
};

/// Trains on a loader whose rows are (input, target), one epoch at a time.
template <class Model, class Data, class LossFunction>
class Trainer {
public:
    /// Stores references to model, optimizer and loader. `on_step` is called in order, about two steps later, and ends
    /// the training if it returns false; steps in flight are completed. `how`: options of every step.
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

    /// Continues the step count of an earlier run.
    void set_steps(std::int64_t steps) { steps_ = steps; }
    std::int64_t steps() const { return steps_; }

    /// Called with the number of every step before it is enqueued.
    void before_step(std::function<void(std::int64_t step)> call) { before_step_ = std::move(call); }
    /// Ends training when any process receives one of the signals. Stores the reference.
    void stop_on(const StopSignals& stop) { signals_ = &stop; }
    /// Why the last run() ended early: a signal's number, or 0 for the callback. With several processes, a request of
    /// any of them ends all of them after the same step, with the same answer here.
    std::optional<int> stopped() const { return stopped_; }

    /// Trains the batches of `epoch` from `first_batch` on, until `last_step` steps have been made in total or the run
    /// is stopped. Waits for all steps. Returns the number of the next batch. Throws the errors of steps and loader.
    /// Collective.
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

    /// Waits for the enqueued steps and calls the callback for them. A no-op inside the callback.
    void report_steps() {
        while (!behind_.empty() && !reports_) report();
    }

    /// Rows per second of all training so far.
    double rows_per_second() const { return throughput_.rows_per_second(); }

private:
    static constexpr std::size_t in_flight = 3;  // losses of older steps can be read without waiting
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
    bool enough_ = false;  // the callback has returned false
    bool reports_ = false;
    bool has_momentum_ = false;
    std::optional<int> stopped_;
    std::int64_t steps_ = 0;
    Throughput throughput_;
    std::deque<std::pair<StepReport, StepLoss>> behind_;
};

/// Fraction (0 to 1) of the rows of `loader`, pairs (input, class), whose largest output is that of their class. Runs
/// in evaluation mode; every module's mode is restored afterwards, even after an exception. With several processes,
/// each computes its own rows, and all get the fraction over all rows.
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
