// A training run as its hooks see it. Runner (runner.h) goes through the epochs and calls the hooks; run_hooks.h has
// ready ones. One of your own overrides what it wants to hear of:
//
//     struct PrintLoss : ls::RunHook {
//         void after_step(ls::Run&, const ls::StepReport& step) override { fmt::print("{}\n", step.loss); }
//     };
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/run_state.h"
#include "lockstep/parallel/step_report.h"

namespace lockstep {

class CheckpointWriter;

/// The result of an evaluation.
struct Score {
    double value = 0;
    std::uint64_t steps = 0;  ///< how many the run had made
};

/// A fact of a run that the one which resumes it has otherwise.
struct ChangedFact {
    std::string name, before, now;
};

/// Where several processes train, all of them have the same hooks, and what a hook decides it decides alike on all.
class Run {
public:
    Run() = default;
    virtual ~Run() = default;
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    /// How far the run has come. Steps and batches count when they have been enqueued.
    const RunState& state() const { return state_; }
    /// What a checkpoint keeps for its program.
    std::map<std::string, std::string>& fields() { return state_.fields; }
    virtual std::int64_t batches_per_epoch() const = 0;
    /// Steps of the whole run when it ends as planned.
    virtual std::int64_t planned_steps() const = 0;
    bool is_complete() const { return static_cast<std::int64_t>(state_.steps) >= planned_steps(); }
    /// No step is to come: hooks are called for the end of the run.
    bool is_over() const { return over_; }
    /// A signal stopped the run that this one resumes at a pause or at the end of an epoch, before its hooks were
    /// called. They are called first.
    bool has_pause_left() const;
    /// Rows a second of training alone.
    virtual double rows_per_second() const = 0;
    virtual Optimizer& optimizer() = 0;
    /// Whether this process is the one that prints and writes: rank 0.
    virtual bool leads() const = 0;

    /// The last result of an evaluation, by its name.
    const std::map<std::string, Score>& scores() const { return scores_; }
    void set_score(const std::string& name, double value) { scores_[name] = {value, state_.steps}; }

    /// For hooks, in `before_run`: `name` sets the learning rate. Throws InvalidArgument if something of the same name
    /// does, or if one of several must be the only one.
    void note_rate_setter(const std::string& name, bool only_one);

    /// Ends the run as soon as can be: at once between steps, some steps later from `after_step`.
    void end() { ended_ = true; }
    /// Why the run ended before its plan: the signal that was caught, or 0 after `end`.
    std::optional<int> stopped() const { return stopped_; }

    /// save_checkpoint of model, optimizer and state. Between steps.
    virtual void save(const std::filesystem::path& checkpoint) = 0;
    /// The same by a writer, of what the steps so far lead to. Between steps, or before one that is to come.
    virtual void save(CheckpointWriter& writer, const std::vector<std::filesystem::path>& checkpoints) = 0;

protected:
    RunState state_;
    bool over_ = false;
    std::map<std::string, bool> rate_setters_;  // by name; true: must be the only one
    std::map<std::string, Score> scores_;
    bool ended_ = false;
    std::optional<int> stopped_;
};

/// Functions that a run calls, in the order in which hooks were added. "Between steps" no step is under way, and the
/// model may be used. An exception from a hook ends the run. At a pause, at the end of an epoch and at the end of the
/// run, all hooks are called by `evaluate`, then by `at_pause`, `after_epoch` or `after_run`, then by `save_if_due`:
/// the order of hooks does not decide what a checkpoint holds. A run that a signal stops at a pause or at the end of an
/// epoch leaves those calls to the run that resumes it.
class RunHook {
public:
    virtual ~RunHook() = default;
    /// Before a checkpoint is saved: what the hook wants to find again goes into fields().
    virtual void before_save(Run& run) { static_cast<void>(run); }
    /// Between steps, before the first.
    virtual void before_run(Run& run) { static_cast<void>(run); }
    /// Between steps, before the first of an epoch; of an epoch that a run goes on with, before the first that remains.
    virtual void before_epoch(Run& run) { static_cast<void>(run); }
    /// Before a step is enqueued, while earlier ones may be under way.
    virtual void before_step(Run& run) { static_cast<void>(run); }
    /// The loss of a step is known, about two steps later.
    virtual void after_step(Run& run, const StepReport& step) {
        static_cast<void>(run);
        static_cast<void>(step);
    }
    /// The number of steps after which the run shall pause next, greater than what state() has; none: never.
    virtual std::optional<std::int64_t> next_pause(const Run& run) const {
        static_cast<void>(run);
        return std::nullopt;
    }
    /// Between steps: computes the scores of this point of the run, if they are due.
    virtual void evaluate(Run& run) { static_cast<void>(run); }
    /// Between steps, when the run has paused for this hook or another.
    virtual void at_pause(Run& run) { static_cast<void>(run); }
    /// Between steps, after the last of an epoch; state() says the next one.
    virtual void after_epoch(Run& run) { static_cast<void>(run); }
    /// Between steps, after the last; also of a run that was stopped, not of one that ends by an exception.
    virtual void after_run(Run& run) { static_cast<void>(run); }
    /// Saves a checkpoint, if one is due: between steps, after all other calls for that point of the run, and before
    /// each step, before `before_step` of any hook.
    virtual void save_if_due(Run& run) { static_cast<void>(run); }
};

namespace detail {
/// The field of a state whose run was stopped at a pause, before the hooks were called.
inline constexpr const char* pause_left = "pause left";
/// The beginning of the fields that hold facts.
inline constexpr const char* fact = "fact ";
/// The scores of the point at which the state was saved.
std::map<std::string, Score> scores_in(const RunState& state);
/// Throws InvalidArgument for a fact that has changed and may not, and for a name in `may_change` that is not a fact.
void require_same_facts(const RunState& state, const std::map<std::string, std::string>& now,
                        const std::vector<std::string>& may_change);
std::string text_of(const std::vector<GradientClip>& clip);
}  // namespace detail

/// The facts in `now` of which the state has another value. A state without the fact is of an earlier version.
std::vector<ChangedFact> changed_facts(const RunState& state, const std::map<std::string, std::string>& now);

inline bool Run::has_pause_left() const {
    return state_.fields.contains(detail::pause_left) || (state_.batch > 0 && state_.batch >= batches_per_epoch());
}

}  // namespace lockstep
