#include "lockstep/parallel/run_hooks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/parallel/checkpoint/file_patterns.h"
#include "lockstep/parallel/events/encoding.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

/// The value of a score that was computed at this point of the run; otherwise null.
const double* fresh_score(const Runner& run, const std::string& name) {
    const auto found = run.scores().find(name);
    return found != run.scores().end() && found->second.steps == run.state().steps ? &found->second.value : nullptr;
}

bool is_better(double score, const std::optional<double>& best, bool higher_is_better, double min_delta = 0) {
    if (std::isnan(score)) return false;
    if (!best) return true;
    return higher_is_better ? score > *best + min_delta : score < *best - min_delta;
}

/// Called at the end of an epoch, after all evaluations have run once.
void require_score(const Runner& run, const std::string& name, const char* hook) {
    if (run.scores().contains(name)) return;
    if (run.scores().empty())
        throw InvalidArgument(fmt::format("{}: score '{}' was not computed in this epoch; expected an Evaluation '{}'",
                                          hook, name, name));
    std::string known;
    for (const auto& [other, score] : run.scores()) known += fmt::format("{}'{}'", known.empty() ? "" : ", ", other);
    throw InvalidArgument(fmt::format("{}: score '{}' is not known; expected one of {}", hook, name, known));
}

/// Integers separated by single blanks; nullopt if the text is anything else.
std::optional<std::vector<std::uint64_t>> integers_in(std::string_view text) {
    std::vector<std::uint64_t> all;
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at != end) {
        if (!all.empty() && *at++ != ' ') return std::nullopt;
        const auto [next, error] = std::from_chars(at, end, all.emplace_back());
        if (error != std::errc()) return std::nullopt;
        at = next;
    }
    return all;
}

}  // namespace

Evaluation::Evaluation(std::string name, std::function<std::optional<double>()> evaluate, int per_epoch)
    : name_(std::move(name)), evaluate_(std::move(evaluate)), per_epoch_(per_epoch) {
    internal::require_utf8(name_, "Evaluation: the name");
    if (per_epoch < 1)
        throw InvalidArgument(fmt::format("Evaluation of {}: {} times an epoch; expected 1 or more", name_, per_epoch));
}

void Evaluation::before_run(Runner& run) {
    if (!run.suffix_for("Evaluation of " + name_).empty())
        throw InvalidArgument(fmt::format("Evaluation of {}: the name is repeated; expected a unique name", name_));
}

std::int64_t Evaluation::mark(const Runner& run, std::int64_t number) const {
    return ceil_div(number * run.batches_per_epoch(), per_epoch_);
}

std::optional<std::int64_t> Evaluation::next_pause(const Runner& run) const {
    for (std::int64_t i = 1; i < per_epoch_; ++i)
        if (const std::int64_t batch = mark(run, i); batch > run.state().batch && batch < run.batches_per_epoch())
            return static_cast<std::int64_t>(run.state().steps) + batch - run.state().batch;
    return std::nullopt;
}

bool Evaluation::is_due(const Runner& run) const {
    const RunState& state = run.state();
    if (run.stopped().value_or(0) != 0) return false;
    if (run.is_over()) return true;
    if (state.batch == 0) return true;
    for (std::int64_t i = 1; i < per_epoch_; ++i)
        if (mark(run, i) == state.batch && state.batch < run.batches_per_epoch()) return true;
    return false;
}

void Evaluation::evaluate(Runner& run) {
    if (!is_due(run) || fresh_score(run, name_)) return;
    if (const std::optional<double> score = evaluate_())
        run.set_score(name_, *score);
    else
        run.interrupt_evaluation();
}

SaveCheckpoints::SaveCheckpoints(SaveCheckpointsOptions options) : options_(std::move(options)) {
    if (options_.file.empty()) throw InvalidArgument("SaveCheckpoints: no file; expected a file name");
    if (options_.every_steps < 0 || options_.every_epochs < 0)
        throw InvalidArgument(fmt::format("SaveCheckpoints: every {} steps, every {} epochs; expected 0 or more",
                                          options_.every_steps, options_.every_epochs));
    if (options_.keep > 0 && !internal::has_number(options_.file))
        throw InvalidArgument(
            fmt::format("SaveCheckpoints: {} files are to be retained, but all have the name {}; expected {{epoch}} or "
                        "{{step}} in the name",
                        options_.keep, options_.file.string()));
    if (options_.best.empty() != options_.score.empty())
        throw InvalidArgument(
            "SaveCheckpoints: only one of best and score; expected both a file and the name of its score");
    for (const auto& [option, file] : {std::pair("best", options_.best), {"interrupted", options_.interrupted}}) {
        if (internal::has_number(file))
            throw InvalidArgument(fmt::format(
                "SaveCheckpoints: {} is {}; expected a name without {{epoch}} and {{step}}, because the file is "
                "replaced by each newer one",
                option, file.string()));
    }
    const auto require_apart = [](const char* option, const std::filesystem::path& file, const char* other_option,
                                  const std::filesystem::path& other) {
        if (!file.empty() && !other.empty() && internal::share_files(other, file))
            throw InvalidArgument(fmt::format(
                "SaveCheckpoints: {} is {} and {} is {}, which can be the same file; expected different files", option,
                file.string(), other_option, other.string()));
    };
    require_apart("best", options_.best, "file", options_.file);
    require_apart("best", options_.best, "interrupted", options_.interrupted);
    if (internal::written_file(options_.interrupted) != internal::written_file(options_.file))
        require_apart("interrupted", options_.interrupted, "file", options_.file);
}

/// Field of the state that lists the existing files, by numbers, so that a checkpoint cannot name other files.
std::string SaveCheckpoints::kept_files() const { return "kept checkpoints" + suffix_.value_or(""); }
/// The epoch and the steps of the last planned checkpoint, or "epoch steps" of a state without the field. A run that
/// was stopped in between has saved its state elsewhere, and this checkpoint is still due.
std::string SaveCheckpoints::last_file() const { return "last checkpoint" + suffix_.value_or(""); }
std::string SaveCheckpoints::best_score() const { return "best " + options_.score + suffix_.value_or(""); }

void SaveCheckpoints::join(Runner& run) {
    suffix_ = run.suffix_for("SaveCheckpoints");
    for (const auto& [option, file] :
         {std::pair("file", options_.file), {"best", options_.best}, {"interrupted", options_.interrupted}})
        if (!file.empty()) run.note_checkpoint(*this, fmt::format("{} of SaveCheckpoints", option), file);
}

void SaveCheckpoints::before_run(Runner& run) {
    join(run);
    saved_.reset();
    if (!run.fields().contains(last_file())) note_last(run);
    if (std::exchange(origin_, run.origin()) == run.origin()) return;
    files_.clear();
    const auto kept = run.state().fields.find(kept_files());
    if (options_.keep == 0 || kept == run.state().fields.end()) return;
    const auto integers = integers_in(kept->second);
    if (!integers || integers->size() % 2 != 0)
        throw DataError(fmt::format("the checkpoint's field '{}' is '{}'; expected pairs of an epoch and a step",
                                    kept_files(), kept->second));
    for (std::size_t i = 0; i < integers->size(); i += 2) files_.push_back({(*integers)[i], (*integers)[i + 1]});
}

void SaveCheckpoints::after_epoch(Runner& run) {
    if (!options_.best.empty()) require_score(run, options_.score, "SaveCheckpoints");
}

void SaveCheckpoints::save_if_due(Runner& run) {
    if (!suffix_) join(run);  // added during the run
    poll_saves(run);
    if (run.is_over())
        save_at_end(run);
    else
        save_due(run);
}

void SaveCheckpoints::save_at_end(Runner& run) {
    const bool interrupted = run.stopped().value_or(0) != 0 && !options_.interrupted.empty();
    if (!interrupted) save_due(run);
    const bool saves = options_.at_end && (interrupted || saved_ != run.state().steps);
    try {
        writer_.wait();
    } catch (const std::exception&) {
        poll_saves(run);
        if (!saves) throw;  // otherwise a newer one follows, and this failure was a warning
    }
    poll_saves(run);
    if (saves) save_last(run, interrupted);
}

void SaveCheckpoints::note_last(Runner& run) const {
    run.fields()[last_file()] = fmt::format("{} {}", run.state().epoch, run.state().steps);
}

void SaveCheckpoints::save_last(Runner& run, bool interrupted) {
    std::filesystem::path file = options_.interrupted;
    unless_it_throws(run, [&] {
        saved_ = run.state().steps;
        if (!interrupted) {
            begun_.push_back({run.state().epoch, run.state().steps});
            file = file_of(begun_.back());
            note_last(run);
        }
        note_scores(run);
        note_files(run, true);
        run.save(file);
    });
    on_saved(run, {file});
}

std::filesystem::path SaveCheckpoints::file_of(const Numbers& numbers) const {
    return internal::numbered(options_.file, numbers.epoch, numbers.steps);
}

bool SaveCheckpoints::is_due(const Runner& run) const {
    const RunState& state = run.state();
    if (state.steps == 0 || saved_ == state.steps || (options_.at_end && run.is_complete())) return false;
    const auto steps = static_cast<std::int64_t>(state.steps), epochs = static_cast<std::int64_t>(state.epoch);
    const bool by_steps = options_.every_steps > 0 && steps % options_.every_steps == 0;
    const bool by_epochs = options_.every_epochs > 0 && state.batch == 0 && epochs % options_.every_epochs == 0;
    if (!by_steps && !by_epochs) return false;
    const auto last = state.fields.find(last_file());
    return last == state.fields.end() || last->second != fmt::format("{} {}", state.epoch, state.steps);
}

bool SaveCheckpoints::is_best(const Runner& run) const {
    const double* const score = options_.best.empty() ? nullptr : fresh_score(run, options_.score);
    return score && is_better(*score, number_in(run.state(), best_score()), options_.higher_is_better);
}

void SaveCheckpoints::save_due(Runner& run) {
    const bool best = is_best(run), due = is_due(run);
    if (!best && !due) return;
    unless_it_throws(run, [&] {
        std::vector<std::filesystem::path> files;
        if (best) {
            run.fields()[best_score()] = field_of(*fresh_score(run, options_.score));
            files.push_back(options_.best);
        }
        if (due) {
            begun_.push_back({run.state().epoch, run.state().steps});
            files.push_back(file_of(begun_.back()));
            note_last(run);
            saved_ = run.state().steps;
        }
        note_scores(run);
        note_files(run, due);
        run.save(writer_, files);
    });
    poll_saves(run);
}

/// Calls `save`. If it throws, for example because a step was refused, the checkpoint is still due.
void SaveCheckpoints::unless_it_throws(Runner& run, const std::function<void()>& save) {
    const auto begun = begun_;
    const auto saved = saved_;
    std::map<std::string, std::optional<std::string>> before;
    for (const std::string& field : {best_score(), last_file(), kept_files()}) {
        const auto found = run.fields().find(field);
        before[field] = found == run.fields().end() ? std::nullopt : std::optional(found->second);
    }
    try {
        save();
    } catch (...) {
        begun_ = begun;
        saved_ = saved;
        for (const auto& [field, text] : before) {
            run.fields().erase(field);
            if (text) run.fields()[field] = *text;
        }
        throw;
    }
}

void SaveCheckpoints::note_scores(Runner& run) const {
    for (const auto& [name, score] : run.scores())
        if (score.steps == run.state().steps)
            run.fields()[detail::score_field + name] = field_of(score.value);
        else
            run.fields().erase(detail::score_field + name);
}

/// If a file may be left to remove, after this save or by a run that this one resumes, the list includes it, in case
/// the process ends before. A file that is saved again counts once, at its last position.
void SaveCheckpoints::note_files(Runner& run, bool removes_one) const {
    if (options_.keep == 0) return;
    std::vector<Numbers> all;
    for (const auto* files : {&files_, &begun_})
        for (const Numbers& numbers : *files) {
            std::erase_if(all, [&](const Numbers& other) { return file_of(other) == file_of(numbers); });
            all.push_back(numbers);
        }
    std::string text;
    const std::size_t most = std::min(all.size(), options_.keep) + (removes_one ? 1 : 0);
    for (std::size_t i = all.size() - std::min(all.size(), most); i < all.size(); ++i)
        text += fmt::format("{}{} {}", text.empty() ? "" : " ", all[i].epoch, all[i].steps);
    run.fields()[kept_files()] = text;
}

void SaveCheckpoints::poll_saves(const Runner& run) {
    for (const FinishedSave& save : writer_.finished()) on_saved(run, save);
}

void SaveCheckpoints::on_saved(const Runner& run, const FinishedSave& save) {
    std::optional<Numbers> numbers;
    if (!begun_.empty() && save.checkpoint == file_of(begun_.front())) {
        numbers = begun_.front();
        begun_.pop_front();
    }
    if (!save.error.empty()) return;
    if (on_save) on_save(save.checkpoint);
    if (!numbers || options_.keep == 0) return;
    files_.push_back(*numbers);
    remove_old_files(run);
}

void SaveCheckpoints::remove_old_files(const Runner& run) {
    // A checkpoint that was saved again counts once, at its last position.
    const std::filesystem::path newest = file_of(files_.back());
    files_.erase(std::remove_if(files_.begin(), std::prev(files_.end()),
                                [&](const Numbers& numbers) { return file_of(numbers) == newest; }),
                 std::prev(files_.end()));
    while (files_.size() > options_.keep) {
        const std::filesystem::path old = file_of(files_.front());
        std::error_code ignored;  // a file that has already been removed is not an error
        if (run.is_rank0())
            for (const auto& file : {resume_path(old), old}) std::filesystem::remove(file, ignored);
        files_.pop_front();
    }
}

namespace {

/// Loads the state that a run has stored with fields that begin with `name`, if any.
template <class Schedule>
void load_schedule(Schedule& schedule, const std::string& name, const Runner& run) {
    std::map<std::string, double> state;
    for (const auto& [number, value] : schedule.state())
        if (const auto kept = number_in(run.state(), name + " " + number)) state[number] = *kept;
    if (!state.empty()) schedule.load_state(state);
}

std::vector<std::map<std::string, double>> settings_of(const Optimizer& optimizer) {
    std::vector<std::map<std::string, double>> groups;
    for (int group = 0; group < optimizer.groups(); ++group) {
        auto& settings = groups.emplace_back();
        for (const std::string& name : optimizer.setting_names()) settings[name] = optimizer.setting(name, group);
    }
    return groups;
}

}  // namespace

void FollowSchedule::before_run(Runner& run) {
    run.note_rate_setter(fmt::format("FollowSchedule '{}'", name_), false);
    if (std::exchange(origin_, run.origin()) != run.origin()) {
        changes_.clear();
        load_schedule(*schedule_, name_, run);
    }
    if (by_ == ScheduleBy::epoch) follow(static_cast<std::int64_t>(run.state().epoch));
}

void FollowSchedule::before_step(Runner& run) {
    const auto steps = static_cast<std::int64_t>(run.state().steps);
    if (by_ != ScheduleBy::step || schedule_->last_epoch() >= steps) return;
    constexpr std::size_t most_in_flight = 8;  // an upper bound
    changes_.push_back({run.state().steps, schedule_->state(), settings_of(run.optimizer())});
    if (changes_.size() > most_in_flight) changes_.pop_front();
    follow(steps);
}

void FollowSchedule::after_refusal(Runner& run) {
    for (; !changes_.empty() && changes_.back().steps >= run.state().steps; changes_.pop_back()) {
        run.optimizer().set_all(changes_.back().settings);
        schedule_->load_state(changes_.back().schedule);
    }
}

void FollowSchedule::after_epoch(Runner& run) {
    if (by_ == ScheduleBy::epoch) follow(static_cast<std::int64_t>(run.state().epoch));
}

void FollowSchedule::follow(std::int64_t to) {
    constexpr std::int64_t most = 100'000'000;  // a minute of steps; a larger number in a checkpoint is damage
    if (to - schedule_->last_epoch() > most)
        throw DataError(
            fmt::format("FollowSchedule '{}': the run has made {} {} and the schedule {} steps; expected at most {} "
                        "steps to catch up",
                        name_, to, by_ == ScheduleBy::step ? "steps" : "epochs", schedule_->last_epoch(), most));
    while (schedule_->last_epoch() < to) schedule_->step();
}

void FollowSchedule::before_save(Runner& run) {
    for (const auto& [name, value] : schedule_->state()) run.fields()[name_ + " " + name] = field_of(value);
}

void FollowPlateau::before_run(Runner& run) {
    run.note_rate_setter(fmt::format("FollowPlateau '{}'", name_), false);
    if (std::exchange(origin_, run.origin()) == run.origin()) return;
    checked_steps_.reset();
    load_schedule(*schedule_, name_, run);
}

void FollowPlateau::after_epoch(Runner& run) {
    require_score(run, score_, "FollowPlateau");
    check_score(run);
}

void FollowPlateau::check_score(const Runner& run) {
    const double* const score = fresh_score(run, score_);
    if (!score || checked_steps_ == run.state().steps) return;
    checked_steps_ = run.state().steps;
    schedule_->step(*score);
}

void FollowPlateau::before_save(Runner& run) {
    for (const auto& [name, value] : schedule_->state()) run.fields()[name_ + " " + name] = field_of(value);
}

void LogRun::before_run(Runner& run) {
    if (!run.has_pending_pause()) logged_ = run.state().steps;  // logged by the run that this one resumes
    if (run.state().steps > 0) lr_ = run.optimizer().lr();
}

void LogRun::after_step(Runner& run, const StepReport& step) {
    lr_ = step.lr;
    if (run.is_rank0()) log_->scalars(step.step, {{"epoch", step.epoch}, {"rows", step.rows}, {"loss", step.loss}});
}

void LogRun::log_scores(Runner& run, bool always) {
    const std::uint64_t steps = run.state().steps;
    std::vector<LoggedNumber> numbers{{"epoch", run.state().epoch}};
    for (const auto& [name, score] : run.scores()) {
        if (score.steps != steps) continue;
        std::string tag = name;
        std::replace(tag.begin(), tag.end(), ' ', '_');
        numbers.emplace_back(tag, score.value);
    }
    if (run.is_rank0() && steps > 0 && logged_ != steps && (always || numbers.size() > 1)) {
        numbers.emplace_back("lr", lr_.value_or(run.optimizer().lr()));
        log_->scalars(static_cast<std::int64_t>(steps) - 1, numbers);
        logged_ = steps;
    }
    log_->flush();
}

std::string StopEarly::waited() const { return "early stop: evaluations since" + suffix_.value_or(""); }

void StopEarly::number(Runner& run) { suffix_ = run.suffix_for("StopEarly"); }

StopEarly::StopEarly(std::string score, int patience, double min_delta, bool higher_is_better)
    : score_(std::move(score)), patience_(patience), min_delta_(min_delta), higher_is_better_(higher_is_better) {
    if (patience < 1)
        throw InvalidArgument(fmt::format("StopEarly on {}: a patience of {}; expected 1 or more", score_, patience));
}

void StopEarly::before_run(Runner& run) {
    number(run);
    if (std::exchange(origin_, run.origin()) != run.origin()) checked_steps_.reset();
    if (number_in(run.state(), waited()).value_or(0) >= patience_) run.end();
}

void StopEarly::after_epoch(Runner& run) {
    require_score(run, score_, "StopEarly");
    check_score(run);
}

void StopEarly::check_score(Runner& run) {
    const double* const score = fresh_score(run, score_);
    if (!score || checked_steps_ == run.state().steps) return;
    checked_steps_ = run.state().steps;
    if (!suffix_) number(run);  // added during the run
    const std::string best = "early stop: best " + score_ + suffix_.value_or("");
    if (is_better(*score, number_in(run.state(), best), higher_is_better_, min_delta_)) {
        run.fields()[best] = field_of(*score);
        run.fields()[waited()] = field_of(0);
        return;
    }
    const double since = number_in(run.state(), waited()).value_or(0) + 1;
    if (!(since >= 1))
        throw DataError(fmt::format("the checkpoint's field '{}' is {}; expected 0 or more", waited(), since - 1));
    run.fields()[waited()] = field_of(since);
    if (since >= patience_) run.end();
}

}  // namespace lockstep
