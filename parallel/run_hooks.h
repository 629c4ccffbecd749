// Predefined hooks for a Runner.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/checkpoint_writer.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/parallel/runner.h"

namespace lockstep {

/// Computes a score `per_epoch` times an epoch, at even intervals, the last time at the epoch's end. A run that ends
/// within an epoch is also evaluated at its end, unless a signal or a stop token stopped it. Two evaluations of a run
/// with the same name are an error (InvalidArgument).
class Evaluation : public RunHook {
public:
    /// `evaluate` is called on all ranks, and may change the model's mode. It returns nullopt, on all ranks, if a stop
    /// token has interrupted it: the run then ends, and the run that resumes it evaluates again. Throws InvalidArgument
    /// unless the name is UTF-8, in which checkpoints store it, and `per_epoch` is at least 1.
    Evaluation(std::string name, std::function<std::optional<double>()> evaluate, int per_epoch = 1);
    void before_run(Runner& run) override;
    std::optional<std::int64_t> next_pause(const Runner& run) const override;
    void evaluate(Runner& run) override;

private:
    bool is_due(const Runner& run) const;
    /// The batch of an epoch after which evaluation `number` is due.
    std::int64_t mark(const Runner& run, std::int64_t number) const;
    std::string name_;
    std::function<std::optional<double>()> evaluate_;
    int per_epoch_;
};

/// Options of SaveCheckpoints.
struct SaveCheckpointsOptions {
    /// Name pattern; "{epoch}" and "{step}" are replaced by the number of completed epochs and steps.
    std::filesystem::path file;
    std::int64_t every_steps = 0;   ///< 0: not by steps
    std::int64_t every_epochs = 0;  ///< 0: not by epochs
    bool at_end = true;             ///< saves at the end of the run, even if it was stopped
    /// Number of newest files of this run to retain; 0: all. A resumed run counts the files from before the resume.
    std::size_t keep = 0;
    /// Additional file for the checkpoint with the best `score`, without "{epoch}" and "{step}"; empty: none. Neither
    /// it nor its run state may be a file that `file` or `interrupted` can name.
    std::filesystem::path best = {};
    std::string score = {};        ///< name of an Evaluation that was added before this hook
    bool higher_is_better = true;  ///< whether a higher score is better
    /// File to save to instead of `file` if a signal or a stop token stops the run, a name as that of `best`; empty:
    /// `file`.
    std::filesystem::path interrupted = {};
};

/// Saves checkpoints in the background (CheckpointWriter) while training continues. A failed save logs a warning; if it
/// was the last one, the run throws at its end. The end of the run waits for pending saves. A score that no evaluation
/// computes is an error (InvalidArgument) at the end of the first epoch. The current scores are fields of the state,
/// named "score NAME", and the best one so far is "best NAME". In a run with several of these hooks, fields of the
/// second one end with " 2", and so on.
class SaveCheckpoints : public RunHook {
public:
    /// Throws InvalidArgument for inconsistent options.
    explicit SaveCheckpoints(SaveCheckpointsOptions options);
    void before_run(Runner& run) override;
    void after_epoch(Runner& run) override;
    void save_if_due(Runner& run) override;
    /// Called with the file name when a checkpoint is complete, between steps or before one.
    std::function<void(const std::filesystem::path&)> on_save;

private:
    /// Identifies a file of this run by the values of "{epoch}" and "{step}".
    struct Numbers {
        std::uint64_t epoch = 0, steps = 0;
        friend bool operator==(const Numbers&, const Numbers&) = default;
    };
    std::filesystem::path file_of(const Numbers& numbers) const;
    bool is_due(const Runner& run) const;
    void save_at_end(Runner& run);
    bool is_best(const Runner& run) const;
    void save_due(Runner& run);
    void unless_it_throws(Runner& run, const std::function<void()>& save);
    /// Store in the state the scores at this point of the run, and the list of retained files.
    void note_scores(Runner& run) const;
    void note_files(Runner& run, bool removes_one) const;
    void note_last(Runner& run) const;
    /// Names of fields of the state.
    std::string last_file() const;
    std::string kept_files() const;
    std::string best_score() const;
    void join(Runner& run);
    void save_last(Runner& run, bool interrupted);
    void poll_saves(const Runner& run);
    void on_saved(const Runner& run, const FinishedSave& save);
    void remove_old_files(const Runner& run);

    SaveCheckpointsOptions options_;
    CheckpointWriter writer_;
    std::optional<std::string> suffix_;    // suffix of the fields
    std::optional<std::uint64_t> origin_;  // Runner::origin of the last run
    std::optional<std::uint64_t> saved_;   // number of steps at the last save of this run
    std::deque<Numbers> begun_;            // being saved
    std::deque<Numbers> files_;            // saved and retained
};

/// When a schedule makes its steps.
enum class ScheduleBy : std::uint8_t { step, epoch };

/// Calls the schedule's `step()` before every step except the first, or after every epoch. Its state is stored in
/// checkpoints. If a resumed run lacks that state, the schedule is stepped until it has caught up, which must take at
/// most 100 million steps (DataError). Several schedules of an optimizer are chained, as in PyTorch. A schedule
/// together with adaptive rates (StepOptions::rates) is an error.
class FollowSchedule : public RunHook {
public:
    /// Stores the reference. `name`: prefix of the state's fields; must be unique among the schedules of a run.
    explicit FollowSchedule(LRSchedule& schedule, ScheduleBy by = ScheduleBy::epoch, std::string name = "schedule")
        : schedule_(&schedule), by_(by), name_(std::move(name)) {}
    void before_run(Runner& run) override;
    void before_step(Runner& run) override;
    void after_refusal(Runner& run) override;
    void after_epoch(Runner& run) override;
    void before_save(Runner& run) override;

private:
    /// Schedule and settings before `follow` has changed them for a step that may be refused.
    struct Change {
        std::uint64_t steps = 0;
        std::map<std::string, double> schedule = {};
        std::vector<std::map<std::string, double>> settings = {};
    };
    void follow(std::int64_t to);
    LRSchedule* schedule_;
    ScheduleBy by_;
    std::string name_;
    std::optional<std::uint64_t> origin_;  // Runner::origin of the last run
    std::deque<Change> changes_;           // newest last
};

/// Passes every new score to a ReduceLROnPlateau. Its state is stored in checkpoints.
class FollowPlateau : public RunHook {
public:
    /// Stores the reference. `score`: name of an Evaluation. `name`: prefix of the state's fields.
    FollowPlateau(ReduceLROnPlateau& schedule, std::string score, std::string name = "plateau")
        : schedule_(&schedule), score_(std::move(score)), name_(std::move(name)) {}
    void before_run(Runner& run) override;
    void at_pause(Runner& run) override { check_score(run); }
    void after_epoch(Runner& run) override;
    void before_save(Runner& run) override;

private:
    void check_score(const Runner& run);
    ReduceLROnPlateau* schedule_;
    std::string score_, name_;
    std::optional<std::uint64_t> origin_;         // Runner::origin of the last run
    std::optional<std::uint64_t> checked_steps_;  // number of steps at the last score passed
};

/// Writes a run to a log. For every step: loss, epoch and rows. For every evaluation: all current scores (with
/// underscores for spaces in their names). For every evaluation and end of an epoch: the learning rate of the last step
/// before it, logged at that step. All of it is flushed before a checkpoint is saved.
class LogRun : public RunHook {
public:
    /// Stores the reference. Only rank 0 writes.
    explicit LogRun(EventLog& log) : log_(&log) {}
    void before_run(Runner& run) override;
    void before_save(Runner&) override { log_->flush(); }
    void after_step(Runner& run, const StepReport& step) override;
    void at_pause(Runner& run) override { log_scores(run, false); }
    void after_epoch(Runner& run) override { log_scores(run, true); }
    void after_run(Runner& run) override { log_scores(run, false); }

private:
    void log_scores(Runner& run, bool always);
    EventLog* log_;
    std::uint64_t logged_ = 0;  // number of steps at the last logged scores
    std::optional<double> lr_;  // learning rate of the last step
};

/// Calls a sampler's `set_epoch` when an epoch begins. For samplers that the program itself reads rows from. (A Loader
/// passes the epoch number to its sampler, and shuffles by its seed and the epoch number.)
template <class Sampler>
class SetSamplerEpoch : public RunHook {
public:
    /// Stores the reference.
    explicit SetSamplerEpoch(Sampler& sampler) : sampler_(&sampler) {}
    void before_epoch(Runner& run) override { sampler_->set_epoch(static_cast<std::int64_t>(run.state().epoch)); }

private:
    Sampler* sampler_;
};

/// Ends the run if a score has not improved for `patience` evaluations. A run that resumes one that ended this way ends
/// at once. A score that no evaluation computes is an error (InvalidArgument) at the end of the first epoch.
class StopEarly : public RunHook {
public:
    /// An improvement is a change by more than `min_delta`. Throws InvalidArgument for a patience below 1.
    StopEarly(std::string score, int patience, double min_delta = 0, bool higher_is_better = true);
    void before_run(Runner& run) override;
    void at_pause(Runner& run) override { check_score(run); }
    void after_epoch(Runner& run) override;

private:
    void check_score(Runner& run);
    std::string waited() const;  ///< the field that counts evaluations without improvement
    void number(Runner& run);
    std::string score_;
    std::optional<std::string> suffix_;    ///< suffix of the fields
    std::optional<std::uint64_t> origin_;  ///< Runner::origin of the last run
    int patience_;
    double min_delta_;
    bool higher_is_better_;
    std::optional<std::uint64_t> checked_steps_;  // number of steps at the last score examined
};

}  // namespace lockstep
