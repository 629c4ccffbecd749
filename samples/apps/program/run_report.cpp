#include "lockstep/samples/apps/program/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace program {

RunReport::RunReport(const std::string& name, const Options& options, const lockstep::Devices& devices,
                     Training training, std::uint64_t steps)
    : name_(name),
      training_(std::move(training)),
      options_(options),
      devices_(devices),
      log_(std::make_unique<RunLog>(options, name, devices, steps)) {
    figures_.score_name = training_.score;
    if (!training_.changes.empty()) log_->events().text("changes", training_.changes, static_cast<std::int64_t>(steps));
}

void RunReport::before_run(lockstep::Runner& run) {
    const auto before = static_cast<std::int64_t>(run.state().steps);
    progress_ = std::make_unique<Progress>(options_.quiet, static_cast<std::uint64_t>(options_.epochs),
                                           std::max<std::int64_t>(run.planned_steps() - before, 0), training_.rows,
                                           training_.unit);
    line(fmt::format("{}: {}, {}", name_, describe(options_, devices_), training_.how));
    if (before > 0)
        line(fmt::format("continues {}: {} steps done, {}", options_.load.string(), before, training_.rates));
    if (!training_.changes.empty()) line(training_.changes);
    if (before > 0 && run.is_complete())
        line(fmt::format("nothing to do: {} epochs and {} steps are done; to continue, increase {}", run.state().epoch,
                         before, options_.steps ? "--steps and --epochs" : "--epochs"));
    if (training_.has_only_weights)
        line(
            fmt::format("starts with the weights of {}; no run state found: optimizer, learning rate, epochs and data "
                        "order start from scratch",
                        options_.load.string()));
}

void RunReport::before_epoch(lockstep::Runner& run) {
    first_batch_ = static_cast<std::int64_t>(run.state().steps) - run.state().batch;
    first_loss_ = figures_.losses.size();
}

void RunReport::after_step(lockstep::Runner& run, const lockstep::StepReport& step) {
    figures_.losses.push_back(step.loss);
    const std::int64_t batches = step.step - first_batch_ + 1;
    progress_->step(step.epoch, std::min(batches * run.state().batch_size, training_.rows), run.rows_per_second(),
                    step.loss);
    show(run, step);
}

void RunReport::show(const lockstep::Runner& run, const lockstep::StepReport& step) {
    const std::int64_t batch = step.step - first_batch_;
    if (options_.log_interval == 0 || batch % options_.log_interval != 0) return;
    const double done = 100.0 * static_cast<double>(batch) / static_cast<double>(run.batches_per_epoch());
    line(fmt::format("Train Epoch: {} [{}/{} ({:.0f}%)]\tLoss: {:.6f}", step.epoch + 1, batch * step.rows,
                     training_.rows, done, step.loss));
}

void RunReport::at_pause(lockstep::Runner& run) {
    const auto score = run.scores().find(training_.score.name);
    if (score != run.scores().end() && score->second.steps == run.state().steps) report_part(run);
}

void RunReport::after_epoch(lockstep::Runner& run) {
    reported_ = first_loss_;
    report_line(run, fmt::format("epoch {}: ", run.state().epoch));
}

void RunReport::after_run(lockstep::Runner& run) {
    const lockstep::RunState& state = run.state();
    if (last_reported_step_ != state.steps) {
        if (run.stopped().value_or(0) != 0)
            figures_.score.reset();
        else if (state.batch > 0)
            report_part(run);
        else
            report_line(run, fmt::format("after {} {}: ", state.epoch, state.epoch == 1 ? "epoch" : "epochs"));
    }
}

void RunReport::report_part(lockstep::Runner& run) {
    const lockstep::RunState& state = run.state();
    report_line(run, fmt::format("epoch {}, step {} of {}: ", state.epoch + 1, state.batch, run.batches_per_epoch()));
}

void RunReport::report_line(lockstep::Runner& run, std::string line) {
    const std::span news = std::span(figures_.losses).subspan(reported_);
    reported_ = figures_.losses.size();
    last_reported_step_ = run.state().steps;
    if (!news.empty())
        line += fmt::format("loss {:.4f}, ",
                            std::accumulate(news.begin(), news.end(), 0.0) / static_cast<double>(news.size()));
    if (const double rate = run.rows_per_second(); rate > 0) line += rate_text(rate, training_.unit) + ", ";
    if (const auto score = run.scores().find(training_.score.name); score != run.scores().end()) {
        figures_.score = score->second.value;
        line += training_.score.str(score->second.value) + ", ";
    }
    line.resize(line.size() - 2);
    progress_->line(line);
}

}  // namespace program
