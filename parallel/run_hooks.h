// Ready hooks for a Runner.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/checkpoint_writer.h"
#include "lockstep/parallel/event_log.h"
#include "lockstep/parallel/run.h"

namespace lockstep {

/// Computes a score so many times an epoch, evenly, the last time at the epoch's end; a run that ends within an epoch
/// is evaluated there too, unless a signal stopped it.
class Evaluation : public RunHook {
public:
    /// `evaluate` is called on all ranks, and may change the model's mode.
    Evaluation(std::string name, std::function<double()> evaluate, int per_epoch = 1);
    std::optional<std::int64_t> next_pause(const Run& run) const override;
    void evaluate(Run& run) override;

private:
    bool is_due(const Run& run) const;
    /// The batches of an epoch after which evaluation `number` comes.
    std::int64_t mark(const Run& run, std::int64_t number) const;
    std::string name_;
    std::function<double()> evaluate_;
    int per_epoch_;
};

struct SaveCheckpointsOptions {
    /// "{epoch}" and "{step}" in it stand for how many of them are done.
    std::filesystem::path file;
    std::int64_t every_steps = 0;   ///< 0: not by steps
    std::int64_t every_epochs = 0;  ///< 0: not by epochs
    bool at_end = true;             ///< also of a run that was stopped
    /// Files of this run that are kept, the newest; 0: all. A run that goes on counts those it had before.
    std::size_t keep = 0;
    /// Where the one with the best `score` is saved beside the others; empty: nowhere.
    std::filesystem::path best = {};
    std::string score = {};        ///< the name of an Evaluation that was added before
    bool higher_is_better = true;  ///< which score is the best
    /// Where a run that a signal stops is saved instead of `file`; empty: there.
    std::filesystem::path interrupted = {};
};

/// Saves checkpoints in the background (CheckpointWriter): while files are written, training goes on. What cannot be
/// saved is a warning; where that was the last one, the run throws at its end. There it waits for what it saves. A
/// score that no evaluation computes is an error (InvalidArgument) at the end of the first epoch. Scores of that point
/// of the run are fields of the state, named "score NAME", and the best one so far is "best NAME".
class SaveCheckpoints : public RunHook {
public:
    /// Throws InvalidArgument for options that do not fit together.
    explicit SaveCheckpoints(SaveCheckpointsOptions options);
    void before_run(Run& run) override;
    void after_epoch(Run& run) override;
    void save_if_due(Run& run) override;
    /// Called with its file once a checkpoint is there, between steps or before one.
    std::function<void(const std::filesystem::path&)> on_save;

private:
    /// A file of this run, by what stands for "{epoch}" and "{step}".
    struct Numbers {
        std::uint64_t epoch = 0, steps = 0;
        friend bool operator==(const Numbers&, const Numbers&) = default;
    };
    std::filesystem::path file_of(const Numbers& numbers) const;
    bool is_due(const Run& run) const;
    void save_at_end(Run& run);
    bool is_best(const Run& run) const;
    void save_what_is_due(Run& run);
    void save(Run& run, const std::vector<std::filesystem::path>& files);
    /// Fields of the state: scores of this point of the run, and which files are kept.
    void note_scores(Run& run) const;
    void note_files(Run& run) const;
    static void note_last(Run& run);
    void save_last(Run& run, bool interrupted);
    void hear_of_saves(const Run& run);
    void hear_of(const Run& run, const FinishedSave& save);
    void remove_old_files(const Run& run);

    SaveCheckpointsOptions options_;
    CheckpointWriter writer_;
    std::optional<std::uint64_t> saved_;  // the number of steps of the last one
    std::deque<Numbers> begun_;           // being saved
    std::deque<Numbers> files_;           // that are there
};

/// When a schedule takes its step.
enum class ScheduleBy : std::uint8_t { step, epoch };

/// Calls the schedule's `step()` before every step but the first, or after every epoch. Its state is kept in
/// checkpoints. A run that resumes one without that state steps the schedule until it has caught up. Several schedules
/// of an optimizer are chained, as in PyTorch; with adaptive rates (StepOptions::rates) a schedule is refused.
class FollowSchedule : public RunHook {
public:
    /// Keeps the reference. `name`: of the fields of the state; several schedules need several names.
    explicit FollowSchedule(LRSchedule& schedule, ScheduleBy by = ScheduleBy::epoch, std::string name = "schedule")
        : schedule_(&schedule), by_(by), name_(std::move(name)) {}
    void before_run(Run& run) override;
    void before_step(Run& run) override;
    void after_epoch(Run& run) override;
    void before_save(Run& run) override;

private:
    void follow(std::int64_t to);
    LRSchedule* schedule_;
    ScheduleBy by_;
    std::string name_;
};

/// Tells a ReduceLROnPlateau every new score. Its state is kept in checkpoints.
class FollowPlateau : public RunHook {
public:
    /// Keeps the reference. `score`: the name of an Evaluation. `name`: of the fields of the state.
    FollowPlateau(ReduceLROnPlateau& schedule, std::string score, std::string name = "plateau")
        : schedule_(&schedule), score_(std::move(score)), name_(std::move(name)) {}
    void before_run(Run& run) override;
    void at_pause(Run& run) override { look(run); }
    void after_epoch(Run& run) override;
    void before_save(Run& run) override;

private:
    void look(const Run& run);
    ReduceLROnPlateau* schedule_;
    std::string score_, name_;
    std::optional<std::uint64_t> looked_;  // the number of steps of the score that it was told last
};

/// Writes a run to a log: of every step its loss, epoch and rows; of every evaluation all scores of that point (their
/// names with underscores for spaces), and of it and of every epoch's end the learning rate, at the last step before
/// it, and of that step. All of it is written before a checkpoint is saved.
class LogRun : public RunHook {
public:
    /// Keeps the reference. Of several processes rank 0 writes.
    explicit LogRun(EventLog& log) : log_(&log) {}
    void before_run(Run& run) override;
    void before_save(Run&) override { log_->flush(); }
    void after_step(Run& run, const StepReport& step) override;
    void at_pause(Run& run) override { log_scores(run, false); }
    void after_epoch(Run& run) override { log_scores(run, true); }
    void after_run(Run& run) override { log_scores(run, false); }

private:
    void log_scores(Run& run, bool always);
    EventLog* log_;
    std::uint64_t logged_ = 0;  // steps of the last ones
    std::optional<double> lr_;  // of the last step
};

/// Tells a sampler which epoch begins, by its `set_epoch`: one that the program reads rows from by itself. (That of a
/// Loader is asked for the rows of each epoch by its number, and a Loader shuffles by its seed and the epoch.)
template <class Sampler>
class SetSamplerEpoch : public RunHook {
public:
    /// Keeps the reference.
    explicit SetSamplerEpoch(Sampler& sampler) : sampler_(&sampler) {}
    void before_epoch(Run& run) override { sampler_->set_epoch(static_cast<std::int64_t>(run.state().epoch)); }

private:
    Sampler* sampler_;
};

/// Ends the run when a score has not become better for so many evaluations; a run that resumes one that ended so ends
/// at once. A score that no evaluation computes is an error (InvalidArgument) at the end of the first epoch.
class StopEarly : public RunHook {
public:
    /// Better: by more than `min_delta`. Throws InvalidArgument for a patience below 1.
    StopEarly(std::string score, int patience, double min_delta = 0, bool higher_is_better = true);
    void before_run(Run& run) override;
    void at_pause(Run& run) override { look(run); }
    void after_epoch(Run& run) override;

private:
    void look(Run& run);
    static std::string waited();  ///< the field that counts evaluations
    std::string score_;
    int patience_;
    double min_delta_;
    bool higher_is_better_;
    std::optional<std::uint64_t> looked_;  // the number of steps of the score that was looked at last
};

}  // namespace lockstep
