#include "lockstep/parallel/run_hooks.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <system_error>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Of a score that was computed at this point of the run.
const double* fresh_score(const Run& run, const std::string& name) {
    const auto found = run.scores().find(name);
    return found != run.scores().end() && found->second.steps == run.state().steps ? &found->second.value : nullptr;
}

std::string exact(double value) { return fmt::format("{:a}", value); }

std::optional<double> number_in(const Run& run, const std::string& field) {
    const auto& fields = run.state().fields;
    const auto found = fields.find(field);
    if (found == fields.end()) return std::nullopt;
    char* end = nullptr;
    const double value = std::strtod(found->second.c_str(), &end);
    if (end == found->second.c_str() || *end != '\0')
        throw DataError(
            fmt::format("the checkpoint's field '{}' is '{}'; it should be a number", field, found->second));
    return value;
}

bool is_better(double score, const std::optional<double>& best, bool higher_is_better, double min_delta = 0) {
    if (std::isnan(score)) return false;
    if (!best) return true;
    return higher_is_better ? score > *best + min_delta : score < *best - min_delta;
}

std::string replaced(std::string text, const std::string& what, std::uint64_t number) {
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what))
        text.replace(at, what.size(), std::to_string(number));
    return text;
}

bool has_number(const std::filesystem::path& file) {
    return file.string().find("{epoch}") != std::string::npos || file.string().find("{step}") != std::string::npos;
}

}  // namespace

Evaluation::Evaluation(std::string name, std::function<double()> evaluate, int per_epoch)
    : name_(std::move(name)), evaluate_(std::move(evaluate)), per_epoch_(per_epoch) {
    if (per_epoch < 1)
        throw InvalidArgument(fmt::format("Evaluation of {}: {} times an epoch; give 1 or more", name_, per_epoch));
}

std::int64_t Evaluation::mark(const Run& run, std::int64_t number) const {
    return (number * run.batches_per_epoch() + per_epoch_ - 1) / per_epoch_;
}

std::optional<std::int64_t> Evaluation::next_pause(const Run& run) const {
    for (std::int64_t i = 1; i < per_epoch_; ++i)
        if (const std::int64_t batch = mark(run, i); batch > run.state().batch && batch < run.batches_per_epoch())
            return static_cast<std::int64_t>(run.state().steps) + batch - run.state().batch;
    return std::nullopt;
}

void Evaluation::at_pause(Run& run) {
    for (std::int64_t i = 1; i < per_epoch_; ++i)
        if (mark(run, i) == run.state().batch && run.state().batch < run.batches_per_epoch()) return evaluate(run);
}

void Evaluation::after_epoch(Run& run) { evaluate(run); }

void Evaluation::after_run(Run& run) {
    const bool by_signal = run.stopped().value_or(0) != 0;
    if (!by_signal && !fresh_score(run, name_)) evaluate(run);
}

void Evaluation::evaluate(Run& run) {
    if (!fresh_score(run, name_)) run.set_score(name_, evaluate_());
}

SaveCheckpoints::SaveCheckpoints(SaveCheckpointsOptions options) : options_(std::move(options)) {
    if (options_.file.empty()) throw InvalidArgument("SaveCheckpoints: no file; name one");
    if (options_.every_steps < 0 || options_.every_epochs < 0)
        throw InvalidArgument(fmt::format("SaveCheckpoints: every {} steps, every {} epochs; give 0 or more",
                                          options_.every_steps, options_.every_epochs));
    if (options_.keep > 0 && !has_number(options_.file))
        throw InvalidArgument(
            fmt::format("SaveCheckpoints: {} files are to be kept, but all are called {}; put {{epoch}} or {{step}} in "
                        "the name",
                        options_.keep, options_.file.string()));
    if (options_.best.empty() != options_.score.empty())
        throw InvalidArgument("SaveCheckpoints: give both a file for the best checkpoint and the name of its score");
}

std::optional<std::int64_t> SaveCheckpoints::next_pause(const Run& run) const {
    if (options_.every_steps == 0) return std::nullopt;
    const auto steps = static_cast<std::int64_t>(run.state().steps);
    return (steps / options_.every_steps + 1) * options_.every_steps;
}

void SaveCheckpoints::at_pause(Run& run) {
    save_best(run);
    if (options_.every_steps > 0 && static_cast<std::int64_t>(run.state().steps) % options_.every_steps == 0)
        save_unless_it_ends(run);
}

void SaveCheckpoints::after_epoch(Run& run) {
    save_best(run);
    if (options_.every_epochs > 0 && static_cast<std::int64_t>(run.state().epoch) % options_.every_epochs == 0)
        save_unless_it_ends(run);
}

void SaveCheckpoints::after_run(Run& run) {
    save_best(run);
    if (options_.at_end && saved_ != run.state().steps) save(run);
}

void SaveCheckpoints::save_unless_it_ends(Run& run) {
    if (!(options_.at_end && run.is_complete()) && saved_ != run.state().steps) save(run);
}

void SaveCheckpoints::note_scores(Run& run) const {
    for (const auto& [name, score] : run.scores())
        if (score.steps == run.state().steps)
            run.fields()["score " + name] = exact(score.value);
        else
            run.fields().erase("score " + name);
}

void SaveCheckpoints::save(Run& run) {
    note_scores(run);
    const std::filesystem::path file =
        replaced(replaced(options_.file.string(), "{epoch}", run.state().epoch), "{step}", run.state().steps);
    run.save(file);
    saved_ = run.state().steps;
    if (on_save) on_save(file);
    if (options_.keep == 0) return;
    if (files_.empty() || files_.back() != file) files_.push_back(file);
    while (files_.size() > options_.keep) {
        std::error_code ignored;  // whoever took it away has done what was to be done
        if (run.leads())
            for (const auto& old : {resume_path(files_.front()), files_.front()}) std::filesystem::remove(old, ignored);
        files_.pop_front();
    }
}

void SaveCheckpoints::save_best(Run& run) const {
    const double* const score = options_.best.empty() ? nullptr : fresh_score(run, options_.score);
    const std::string field = "best " + options_.score;
    if (!score || !is_better(*score, number_in(run, field), options_.higher_is_better)) return;
    run.fields()[field] = exact(*score);
    note_scores(run);
    run.save(options_.best);
    if (on_save) on_save(options_.best);
}

void FollowSchedule::before_run(Run& run) {
    std::map<std::string, double> state;
    for (const auto& [name, value] : schedule_->state())
        if (const auto kept = number_in(run, name_ + " " + name)) state[name] = *kept;
    if (!state.empty()) schedule_->load_state(state);
}

void FollowSchedule::before_step(Run& run) {
    if (by_ == ScheduleBy::step) follow(static_cast<std::int64_t>(run.state().steps));
}

void FollowSchedule::after_epoch(Run& run) {
    if (by_ == ScheduleBy::epoch) follow(static_cast<std::int64_t>(run.state().epoch));
    keep(run);
}

void FollowSchedule::follow(std::int64_t to) {
    while (schedule_->last_epoch() < to) schedule_->step();
}

void FollowSchedule::keep(Run& run) const {
    for (const auto& [name, value] : schedule_->state()) run.fields()[name_ + " " + name] = exact(value);
}

StopEarly::StopEarly(std::string score, int patience, double min_delta, bool higher_is_better)
    : score_(std::move(score)), patience_(patience), min_delta_(min_delta), higher_is_better_(higher_is_better) {
    if (patience < 1)
        throw InvalidArgument(fmt::format("StopEarly on {}: a patience of {}; give 1 or more", score_, patience));
}

void StopEarly::look(Run& run) {
    const double* const score = fresh_score(run, score_);
    if (!score || looked_ == run.state().steps) return;
    looked_ = run.state().steps;
    const std::string best = "early stop: best " + score_, waited = "early stop: evaluations since";
    if (is_better(*score, number_in(run, best), higher_is_better_, min_delta_)) {
        run.fields()[best] = exact(*score);
        run.fields()[waited] = exact(0);
        return;
    }
    const double since = number_in(run, waited).value_or(0) + 1;
    run.fields()[waited] = exact(since);
    if (since >= patience_) run.end();
}

}  // namespace lockstep
