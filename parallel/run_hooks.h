// Ready hooks for a Runner.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/run.h"

namespace lockstep {

/// Computes a score so many times an epoch, evenly, the last time at the epoch's end; a run that ends within an epoch
/// is evaluated there too, unless a signal stopped it.
class Evaluation : public RunHook {
public:
    /// `evaluate` is called on all ranks, and may change the model's mode.
    Evaluation(std::string name, std::function<double()> evaluate, int per_epoch = 1);
    std::optional<std::int64_t> next_pause(const Run& run) const override;
    void at_pause(Run& run) override;
    void after_epoch(Run& run) override;
    void after_run(Run& run) override;

private:
    void evaluate(Run& run);
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
    /// Files of this run that are kept, the newest; 0: all.
    std::size_t keep = 0;
    /// Where the one with the best `score` is saved beside the others; empty: nowhere.
    std::filesystem::path best = {};
    std::string score = {};        ///< the name of an Evaluation that was added before
    bool higher_is_better = true;  ///< which score is the best
};

/// Saves checkpoints (save_checkpoint). Scores of that point of the run are fields of the state, named "score NAME",
/// and the best one so far is "best NAME".
class SaveCheckpoints : public RunHook {
public:
    /// Throws InvalidArgument for options that do not fit together.
    explicit SaveCheckpoints(SaveCheckpointsOptions options);
    std::optional<std::int64_t> next_pause(const Run& run) const override;
    void at_pause(Run& run) override;
    void after_epoch(Run& run) override;
    void after_run(Run& run) override;
    /// Called after each save with its file.
    std::function<void(const std::filesystem::path&)> on_save;

private:
    /// Scores of this point of the run go into the checkpoint, as fields named "score NAME".
    void note_scores(Run& run) const;
    void save(Run& run);
    void save_unless_it_ends(Run& run);
    void save_best(Run& run) const;
    SaveCheckpointsOptions options_;
    std::optional<std::uint64_t> saved_;  // the number of steps of the last one
    std::deque<std::filesystem::path> files_;
};

/// When a schedule takes its step.
enum class ScheduleBy : std::uint8_t { step, epoch };

/// Calls the schedule's `step()` before every step but the first, or after every epoch. Its state is kept in
/// checkpoints by a SaveCheckpoints that is added after it: a run that goes on finds it; where it does not, the
/// schedule is brought to where the run is.
class FollowSchedule : public RunHook {
public:
    /// Keeps the reference. `name`: of the fields of the state; several schedules need several names.
    explicit FollowSchedule(LRSchedule& schedule, ScheduleBy by = ScheduleBy::epoch, std::string name = "schedule")
        : schedule_(&schedule), by_(by), name_(std::move(name)) {}
    void before_run(Run& run) override;
    void before_step(Run& run) override;
    void at_pause(Run& run) override { keep(run); }
    void after_epoch(Run& run) override;
    void after_run(Run& run) override { keep(run); }

private:
    void follow(std::int64_t to);
    void keep(Run& run) const;
    LRSchedule* schedule_;
    ScheduleBy by_;
    std::string name_;
};

/// Ends the run when a score has not become better for so many evaluations.
class StopEarly : public RunHook {
public:
    /// Better: by more than `min_delta`. Throws InvalidArgument for a patience below 1.
    StopEarly(std::string score, int patience, double min_delta = 0, bool higher_is_better = true);
    void at_pause(Run& run) override { look(run); }
    void after_epoch(Run& run) override { look(run); }

private:
    void look(Run& run);
    std::string score_;
    int patience_;
    double min_delta_;
    bool higher_is_better_;
    std::optional<std::uint64_t> looked_;  // the number of steps of the score that was looked at last
};

}  // namespace lockstep
