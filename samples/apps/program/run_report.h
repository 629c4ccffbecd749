// Reports of a run: progress on the terminal, the log, and the figures for --json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/parallel/runner.h"
#include "lockstep/samples/apps/program/options.h"
#include "lockstep/samples/apps/program/progress.h"
#include "lockstep/samples/apps/program/report.h"

namespace program {

class RunReport final : public lockstep::RunHook {
public:
    struct Training {
        std::string how;                ///< for the first line: "64 rows per step in 2 shards"
        std::string rates;              ///< for the line of a resumed run: "lr 0.1"
        std::int64_t rows;              ///< rows per epoch
        std::string unit;               ///< name of the rows: "samples"
        ScoreName score;                ///< score of the reported Evaluation
        std::string changes = {};       ///< "continues with --seed 3 instead of 1", if something has changed
        bool has_only_weights = false;  ///< whether --load had weights without a run state
    };
    /// Stores the reference to `options`. `steps`: number of completed steps of the run.
    RunReport(const std::string& name, const Options& options, const lockstep::Devices& devices, Training training,
              std::uint64_t steps);

    void before_run(lockstep::Runner& run) override;
    void before_epoch(lockstep::Runner& run) override;
    void after_step(lockstep::Runner& run, const lockstep::StepReport& step) override;
    void at_pause(lockstep::Runner& run) override;
    void after_epoch(lockstep::Runner& run) override;
    void after_run(lockstep::Runner& run) override;

    void line(const std::string& text) { progress_->line(text); }
    Figures& figures() { return figures_; }
    RunLog& log() { return *log_; }

private:
    /// Prints `line` with the mean loss of the epoch (over this process's steps) at the epoch's end, otherwise since
    /// the last line, and with rate and score.
    void report_line(lockstep::Runner& run, std::string line);
    void report_part(lockstep::Runner& run);
    /// The line that PyTorch's examples print every --log-interval batches.
    void show(const lockstep::Runner& run, const lockstep::StepReport& step);
    std::string name_;
    Training training_;
    const Options& options_;
    lockstep::Devices devices_;
    std::unique_ptr<RunLog> log_;
    std::unique_ptr<Progress> progress_;
    Figures figures_;
    std::int64_t first_batch_ = 0;                     // the step that would have been the first of the epoch
    std::size_t first_loss_ = 0;                       // index of the first loss of the epoch
    std::size_t reported_ = 0;                         // losses included in printed lines
    std::optional<std::uint64_t> last_reported_step_;  // number of steps at the last line
};

}  // namespace program
