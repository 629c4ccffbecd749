// A training run as seen by its hooks. Runner (runner.h) runs the epochs and calls the hooks; run_hooks.h has
// predefined ones. A custom hook overrides the events that it handles:
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
    std::uint64_t steps = 0;  ///< number of steps before the evaluation
};

/// A fact whose value differs between a run and the run that resumes it.
struct ChangedFact {
    std::string name, before, now;
};

/// State and services of a run for hooks. All processes of a job must have the same hooks, and each hook must make the
/// same decisions on all of them.
class Run {
public:
    Run() = default;
    virtual ~Run() = default;
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    /// Position of the run. Steps and batches count once they are enqueued.
    const RunState& state() const { return state_; }
    /// Fields for the program's own use, stored in checkpoints.
    std::map<std::string, std::string>& fields() { return state_.fields; }
    virtual std::int64_t batches_per_epoch() const = 0;
    /// Total number of steps if the run ends as planned.
    virtual std::int64_t planned_steps() const = 0;
    bool is_complete() const { return static_cast<std::int64_t>(state_.steps) >= planned_steps(); }
    /// Whether no more steps follow and hooks are called for the end of the run.
    bool is_over() const { return over_; }
    /// Whether the run that this one resumes was stopped by a signal at a pause or at the end of an epoch, before its
    /// hooks were called. They are called first.
    bool has_pause_left() const;
    /// Rows per second of training, without evaluation and pauses.
    virtual double rows_per_second() const = 0;
    virtual Optimizer& optimizer() = 0;
    /// Whether this process prints and writes files: true on rank 0.
    virtual bool leads() const = 0;

    /// The latest result of each evaluation, by name.
    const std::map<std::string, Score>& scores() const { return scores_; }
    void set_score(const std::string& name, double value) { scores_[name] = {value, state_.steps}; }

    /// For hooks, in `before_run`: declares that `name` sets the learning rate. Throws InvalidArgument if a hook of the
    /// same name does, or if there are several and one of them must be the only one.
    void note_rate_setter(const std::string& name, bool only_one);

    /// Ends the run as soon as possible: at once between steps, some steps later from `after_step`.
    void end() { ended_ = true; }
    /// Why the run ended early: the signal's number, or 0 after `end`.
    std::optional<int> stopped() const { return stopped_; }

    /// Calls save_checkpoint with model, optimizer and state. Only between steps.
    virtual void save(const std::filesystem::path& checkpoint) = 0;
    /// Saves the result of all steps so far in the background with `writer`. Only between steps or before a step.
    virtual void save(CheckpointWriter& writer, const std::vector<std::filesystem::path>& checkpoints) = 0;

protected:
    RunState state_;
    bool over_ = false;
    std::map<std::string, bool> rate_setters_;  // by name; true: must be the only one
    std::map<std::string, Score> scores_;
    bool ended_ = false;
    std::optional<int> stopped_;
};

/// Callbacks of a run, called in the order in which hooks were added. "Between steps" means that no step is in flight
/// and the model may be used. An exception from a hook ends the run. At a pause, at the end of an epoch and at the end
/// of the run, all hooks get `evaluate`, then `at_pause`, `after_epoch` or `after_run`, then `save_if_due`. The order
/// of hooks therefore does not affect the content of a checkpoint. If a signal stops the run at a pause or at the end
/// of an epoch, the run that resumes it makes those calls.
class RunHook {
public:
    virtual ~RunHook() = default;
    /// Before a checkpoint is saved. The hook stores the data that it needs to resume in fields().
    virtual void before_save(Run& run) { static_cast<void>(run); }
    /// Between steps, before the first.
    virtual void before_run(Run& run) { static_cast<void>(run); }
    /// Between steps, before the first step of an epoch; in a resumed epoch, before the first remaining step.
    virtual void before_epoch(Run& run) { static_cast<void>(run); }
    /// Before a step is enqueued, while earlier ones may be in flight.
    virtual void before_step(Run& run) { static_cast<void>(run); }
    /// When the loss of a step is known, about two steps later.
    virtual void after_step(Run& run, const StepReport& step) {
        static_cast<void>(run);
        static_cast<void>(step);
    }
    /// Number of steps after which the run pauses next, greater than that of state(); nullopt: never.
    virtual std::optional<std::int64_t> next_pause(const Run& run) const {
        static_cast<void>(run);
        return std::nullopt;
    }
    /// Between steps: computes the scores at this point of the run, if they are due.
    virtual void evaluate(Run& run) { static_cast<void>(run); }
    /// Between steps, when the run has paused for any hook.
    virtual void at_pause(Run& run) { static_cast<void>(run); }
    /// Between steps, after the last step of an epoch; state() is already at the next epoch.
    virtual void after_epoch(Run& run) { static_cast<void>(run); }
    /// Between steps, after the last step. Also called if the run was stopped, but not if it ends by an exception.
    virtual void after_run(Run& run) { static_cast<void>(run); }
    /// Saves a checkpoint if one is due. Called between steps, after all other calls for that point of the run, and
    /// before each step, before `before_step` of any hook.
    virtual void save_if_due(Run& run) { static_cast<void>(run); }
};

namespace detail {
/// Field of a state whose run was stopped at a pause, before the hooks were called.
inline constexpr const char* pause_left = "pause left";
/// Prefix of the fields that hold facts.
inline constexpr const char* fact = "fact ";
/// The scores at the point at which the state was saved.
std::map<std::string, Score> scores_in(const RunState& state);
/// Throws InvalidArgument for a fact that has changed and may not, and for a name in `may_change` that is not a fact.
void require_same_facts(const RunState& state, const std::map<std::string, std::string>& now,
                        const std::vector<std::string>& may_change);
std::string text_of(const std::vector<GradientClip>& clip);
}  // namespace detail

/// The facts in `now` whose value in the state differs. A fact that the state lacks (an earlier version) is not
/// reported.
std::vector<ChangedFact> changed_facts(const RunState& state, const std::map<std::string, std::string>& now);

inline bool Run::has_pause_left() const {
    return state_.fields.contains(detail::pause_left) || (state_.batch > 0 && state_.batch >= batches_per_epoch());
}

}  // namespace lockstep
