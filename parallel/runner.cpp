#include "lockstep/parallel/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include "lockstep/parallel/checkpoint/file_patterns.h"
#include "lockstep/parallel/events/encoding.h"
#include "lockstep/parallel/internal/throughput.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr std::size_t max_in_flight = 3;  // losses of older steps can be read without waiting

/// Sets a flag while it lives.
class FlagScope {
public:
    explicit FlagScope(bool& flag) : flag_(flag) { flag_ = true; }
    FlagScope(const FlagScope&) = delete;
    FlagScope& operator=(const FlagScope&) = delete;
    ~FlagScope() { flag_ = false; }

private:
    bool& flag_;
};

/// Field of a state whose run was stopped at a pause, before the hooks were called.
constexpr const char* pending_pause = "pause left";

/// End of the fact "shards" of a run whose options leave the number open.
constexpr const char* one_per_device = ", one per device";

/// Fact "deterministic" of a run with a fixed number of shards and without the option.
constexpr const char* by_fixed_shards = "by fixed shards";

std::string text_of(const std::vector<GradientClip>& clip) {
    std::string text;
    for (const GradientClip& one : clip) {
        if (!text.empty()) text += ", ";
        if (const auto* norm = std::get_if<ClipGradNorm>(&one))
            text += fmt::format("norm {} of order {} in group {}", norm->max_norm, norm->norm_type, norm->group);
        else
            text += fmt::format("value {} in group {}", std::get<ClipGradValue>(one).clip_value,
                                std::get<ClipGradValue>(one).group);
    }
    return text.empty() ? "none" : text;
}

std::string text_of(bool on) { return on ? "on" : "off"; }

/// "4", or "4, one per device" if the options leave the number open.
std::string text_of_shards(const Engine& engine) {
    return fmt::format("{}{}", engine.shards(), engine.options().shards > 0 ? "" : one_per_device);
}

const char* text_of_order(const LoaderOptions& order) {
    if (!order.sampler) return order.shuffle ? "shuffled" : "sequential";
    return order.sampler.is_batching() ? "batch sampler" : "sampler";
}

/// Whether a run with one value resumes with the other one. One shard per device is not the user's choice: a change of
/// devices may change the number of shards, and the same number may be given or result from the devices. A fixed number
/// of shards implies `deterministic`.
bool is_same_fact(const std::string& name, const std::string& before, const std::string& now) {
    if (before == now) return true;
    if (name == "deterministic") return before == by_fixed_shards || now == by_fixed_shards;
    if (name != "shards") return false;
    const auto number = [](const std::string& text) { return text.substr(0, text.find(',')); };
    return number(before) == number(now) || (before.ends_with(one_per_device) && now.ends_with(one_per_device));
}

/// Throws InvalidArgument for a changed fact that may not change, and for a name in `may_change` that is not a fact.
void require_same_facts(const RunState& state, const std::map<std::string, std::string>& now,
                        const std::vector<std::string>& may_change) {
    for (const std::string& name : may_change)
        if (!now.contains(name))
            throw InvalidArgument(fmt::format("Runner: may_change names '{}'; expected a fact of the run", name));
    std::string text;
    for (const auto& [name, before, value] : changed_facts(state, now))
        if (std::find(may_change.begin(), may_change.end(), name) == may_change.end())
            text += fmt::format("{}{} is '{}', and the run has '{}'", text.empty() ? "" : "; ", name, value, before);
    if (!text.empty())
        throw InvalidArgument(fmt::format("Runner: {}; expected the same, or the name in may_change", text));
}

/// Throws InvalidArgument for text that a checkpoint cannot store, which otherwise the first save would throw.
void require_utf8(const RunState& state) {
    for (const auto* texts : {&state.fields, &state.metadata})
        for (const auto& [name, value] : *texts) {
            internal::require_utf8(name, "Runner: the name of a field of the run's state");
            internal::require_utf8(value, fmt::format("Runner: field '{}' of the run's state", name));
        }
}

/// The scores at the point at which the state was saved.
std::map<std::string, Score> scores_in(const RunState& state) {
    const std::string_view prefix = detail::score_field;
    std::map<std::string, Score> scores;
    for (const auto& [field, text] : state.fields)
        if (field.starts_with(prefix)) scores[field.substr(prefix.size())] = {*number_in(state, field), state.steps};
    return scores;
}

}  // namespace

std::vector<ChangedFact> changed_facts(const RunState& state, const std::map<std::string, std::string>& now) {
    std::vector<ChangedFact> changed;
    for (const auto& [name, value] : now) {
        const auto before = state.fields.find(detail::fact + name);
        if (before != state.fields.end() && !is_same_fact(name, before->second, value))
            changed.push_back({name, before->second, value});
    }
    return changed;
}

Runner::Runner(std::unique_ptr<Types> types, Optimizer& optimizer, const RunnerOptions& options)
    : types_(std::move(types)), optimizer_(optimizer), options_(options), throughput_(std::make_unique<Throughput>()) {
    if (options.epochs == (std::numeric_limits<std::uint64_t>::max)() && !options.steps)
        throw InvalidArgument("Runner: neither epochs nor steps; expected a number of either");
    if (options.steps && *options.steps < 0)
        throw InvalidArgument(fmt::format("Runner: {} steps; expected 0 or more", *options.steps));
    const std::vector<std::string> settings = optimizer.setting_names();
    has_momentum_ = std::find(settings.begin(), settings.end(), "momentum") != settings.end();
}

Runner::~Runner() = default;

std::map<std::string, std::string> Runner::facts() const {
    const LoaderOptions& order = types_->order();
    std::map<std::string, std::string> all = options_.facts;
    all.try_emplace("rows", std::to_string(types_->rows()));
    all.try_emplace("batch-size", std::to_string(order.batch_size));
    if (order.shuffle) all.try_emplace("seed", std::to_string(order.seed));
    all.try_emplace("order", text_of_order(order));
    all.try_emplace("drop-last", text_of(order.drop_last));
    all.try_emplace("accumulation-steps", std::to_string(options_.step.accumulation_steps));
    all.try_emplace("clip", text_of(options_.step.clip));
    all.try_emplace("rates", options_.step.rates ? options_.step.rates->name() : "none");
    all.try_emplace("scaler", text_of(options_.step.scaler && options_.step.scaler->is_enabled()));
    all.try_emplace("skip-nonfinite", text_of(options_.step.skip_nonfinite));
    const Engine& engine = types_->engine();
    const EngineOptions& options = engine.options();
    all.try_emplace("shards", text_of_shards(engine));
    const bool implied = options.shards > 0 && !options.deterministic;
    all.try_emplace("deterministic", implied ? by_fixed_shards : text_of(options.deterministic));
    all.try_emplace("reduction", options.reduction == ReductionMode::fast ? "fast" : "tree");
    all.try_emplace("allow-tf32", text_of(options.allow_tf32));
    const bool direct = options.convolution.value_or(default_conv_algorithm()) == ConvAlgorithm::direct;
    all.try_emplace("convolution", direct ? "direct" : "automatic");
    all.try_emplace("nan-policy", options.nan_policy == NanPolicy::stop ? "stop" : "ignore");
    all.try_emplace("amp", options.autocast ? std::string(name_of(*options.autocast)) : "off");
    return all;
}

void Runner::resume_from(const RunState& state) {
    if (running_)
        throw InvalidArgument("Runner: resume_from was called by a hook of this run; expected a call before run");
    require_same_facts(state, facts(), options_.may_change);
    if (options_.step.scaler) restore_scaler(*options_.step.scaler, state);
    if (options_.step.rates) restore_rates(*options_.step.rates, state);
    const std::int64_t batch_size = types_->order().batch_size;
    if (state.batch > 0 && state.batch_size > 0 && state.batch_size != batch_size)
        throw InvalidArgument(
            fmt::format("Runner: {} rows a step; expected {}, because the run was stopped within an epoch with that "
                        "batch size",
                        batch_size, state.batch_size));
    state_ = state;
    ++origin_;
    scores_ = scores_in(state);
    steps_ = static_cast<std::int64_t>(state.steps);
}

std::int64_t Runner::batches_per_epoch() const { return types_->batches(); }

bool Runner::is_rank0() const { return types_->writes_files(); }

std::int64_t Runner::planned_steps() const {
    const std::int64_t batches = types_->batches();
    const auto left = static_cast<double>(options_.epochs - std::min(options_.epochs, state_.epoch));
    std::int64_t planned = (std::numeric_limits<std::int64_t>::max)();
    if (left * static_cast<double>(batches) < 9e18)
        planned = static_cast<std::int64_t>(state_.steps) +
                  std::max<std::int64_t>(0, static_cast<std::int64_t>(left) * batches - state_.batch);
    return options_.steps ? std::min(*options_.steps, planned) : planned;
}

bool Runner::epoch_is_over() const { return state_.batch > 0 && state_.batch >= types_->batches(); }

bool Runner::has_pending_pause() const { return state_.fields.contains(pending_pause) || epoch_is_over(); }

double Runner::rows_per_second() const { return throughput_->rows_per_second(); }

void Runner::note_rate_setter(const std::string& name, bool only_one) {
    internal::require_utf8(name, "Runner: the name of a rate setter");
    if (rate_setters_.contains(name))
        throw InvalidArgument(fmt::format("Runner: {} is repeated; expected a unique name for each rate setter", name));
    for (const auto& [other, must_be_only] : rate_setters_)
        if (only_one || must_be_only)
            throw InvalidArgument(
                fmt::format("Runner: {} and {} both set the learning rate; expected one of them", other, name));
    rate_setters_[name] = only_one;
}

void Runner::note_checkpoint(const RunHook& hook, const std::string& option, const std::filesystem::path& file) {
    for (const Checkpoint& other : checkpoints_)
        if (other.hook != &hook && internal::share_files(other.file, file))
            throw InvalidArgument(
                fmt::format("Runner: {} of a hook is {} and {} of another one is {}, which can be the "
                            "same file; expected different files",
                            other.option, other.file.string(), option, file.string()));
    checkpoints_.push_back({&hook, option, file});
}

std::string Runner::suffix_for(const std::string& name) {
    const int number = ++suffixes_[name];
    return number == 1 ? std::string() : fmt::format(" {}", number);
}

void Runner::run() {
    if (running_) throw InvalidArgument("Runner: run was called by a hook of this run; expected a call after its end");
    const FlagScope running(running_);
    state_.batch_size = types_->order().batch_size;
    const auto now = facts();
    for (const auto& [name, value] : now) state_.fields.try_emplace(detail::fact + name, value);
    for (const auto& [name, before, value] : changed_facts(state_, now)) state_.fields[detail::fact + name] = value;
    require_utf8(state_);
    over_ = false;
    if (std::exchange(returned_, false)) {
        ended_ = false;
        stopped_.reset();
    }
    rate_setters_.clear();
    suffixes_.clear();
    checkpoints_.clear();
    if (options_.step.rates) note_rate_setter(options_.step.rates->name(), true);
    each(&RunHook::before_run);
    while (!ended_ && !stopped_ && state_.epoch < options_.epochs && (!is_complete() || has_pending_pause()))
        train_epoch();
    if (ended_ && !stopped_) stopped_ = 0;
    over_ = true;
    each(&RunHook::evaluate);
    each(&RunHook::after_run);
    each(&RunHook::save_if_due);
    returned_ = true;
}

void Runner::train_epoch() {
    if (!epoch_is_over()) each(&RunHook::before_epoch);
    first_step_ = static_cast<std::int64_t>(state_.steps) - state_.batch;
    if (state_.fields.contains(pending_pause)) pause();
    while (!ended_ && !stopped_ && !epoch_is_over() && !is_complete()) {
        const auto next = next_pause();
        train_batches(next);
        if (!next || steps_ < *next) continue;
        if (is_interrupted())
            state_.fields[pending_pause] = "1";
        else
            pause();
    }
    // After a signal, the end of an epoch is handled by the run that resumes this one.
    if (epoch_is_over() && !is_interrupted()) end_epoch();
}

/// If a hook throws or interrupts its evaluation, the epoch is still to be ended.
void Runner::end_epoch() {
    const std::int64_t batches = state_.batch;
    const auto restore = [&] {
        --state_.epoch;
        state_.batch = batches;
    };
    ++state_.epoch;
    state_.batch = 0;
    try {
        each(&RunHook::evaluate);
        if (is_interrupted()) return restore();
        each(&RunHook::after_epoch);
        each(&RunHook::save_if_due);
    } catch (...) {
        restore();
        throw;
    }
}

/// Trains until the epoch ends, `last_step` steps have been made in total, or the run is stopped. Waits for all steps.
void Runner::train_batches(std::optional<std::int64_t> last_step) {
    last_step_ = last_step;
    stop_.reset();
    throughput_->resume();
    try {
        types_->train(state_.epoch, state_.batch, *this);
        types_->engine().synchronize();
        throughput_->pause();
        while (!unreported_.empty()) report_step();
    } catch (...) {
        forget_refused();
        if (last_step && steps_ >= *last_step) state_.fields[pending_pause] = "1";
        throw;
    }
    if (!stop_) stop_ = types_->engine().sync_stop(wish());
    stopped_ = stop_;
}

bool Runner::begin_step() {
    if (last_step_ && steps_ >= *last_step_) return false;
    if ((stop_ = types_->engine().poll_stop(wish()))) return false;
    each(&RunHook::save_if_due);
    each(&RunHook::before_step);
    return true;
}

void Runner::end_step(std::int64_t rows, StepLoss loss) {
    unreported_.push_back(
        {{state_.epoch, steps_, rows, 0, optimizer_.lr(), has_momentum_ ? optimizer_.setting("momentum") : 0,
          options_.step.rates ? options_.step.rates->gain() : 1},
         loss});
    ++steps_;
    state_.steps = static_cast<std::uint64_t>(steps_);
    state_.batch = steps_ - first_step_;
    if (throughput_->step()) {
        types_->engine().synchronize();
        throughput_->resume();
    }
    while (unreported_.size() > max_in_flight) report_step();
}

void Runner::report_step() {
    try {
        unreported_.front().first.loss = unreported_.front().second.item();
    } catch (...) {
        forget_refused();
        throw;
    }
    const StepReport step = unreported_.front().first;
    unreported_.pop_front();
    throughput_->done(step.rows);
    const FlagScope reports(reports_);
    const std::size_t count = hooks_.size();
    for (std::size_t i = 0; i < count; ++i) hooks_[i]->after_step(*this, step);
}

/// If steps are known to have been refused, the position becomes that of the first of them.
void Runner::forget_refused() {
    const auto is_refused = [](const std::pair<StepReport, StepLoss>& step) {
        try {
            if (step.second.ready()) static_cast<void>(step.second.item());
            return false;
        } catch (const Error&) {
            return true;
        }
    };
    const auto first = std::find_if(unreported_.begin(), unreported_.end(), is_refused);
    if (first == unreported_.end()) return;
    steps_ = first->first.step;
    state_.steps = static_cast<std::uint64_t>(steps_);
    state_.batch = steps_ - first_step_;
    unreported_.erase(first, unreported_.end());
    for (std::size_t i = hooks_.size(); i > 0; --i) hooks_[i - 1]->after_refusal(*this);
}

std::optional<int> Runner::wish() const {
    if (const auto signal = signals_ ? signals_->signal() : std::nullopt) return signal;
    if (ended_) return 0;
    return token_.stop_requested() ? std::optional(stopped_by_token) : std::nullopt;
}

/// A hook may add other hooks, which may move the vector but not the hooks.
void Runner::each(Call call) {
    const std::size_t count = hooks_.size();
    for (std::size_t i = 0; i < count; ++i) (hooks_[i].get()->*call)(*this);
}

/// If a hook throws or interrupts its evaluation, the pause is still pending.
void Runner::pause() {
    const auto restore = [&] { state_.fields[pending_pause] = "1"; };
    state_.fields.erase(pending_pause);
    try {
        each(&RunHook::evaluate);
        if (is_interrupted()) return restore();
        each(&RunHook::at_pause);
        each(&RunHook::save_if_due);
    } catch (...) {
        restore();
        throw;
    }
}

std::optional<std::int64_t> Runner::next_pause() const {
    std::optional<std::int64_t> first = options_.steps;
    for (const auto& hook : hooks_) {
        const auto pause = hook->next_pause(*this);
        if (!pause) continue;
        if (*pause <= steps_)
            throw InvalidArgument(
                fmt::format("Runner: next_pause of a hook returned {} after {} steps; expected a later step or nullopt",
                            *pause, steps_));
        first = std::min(*pause, first.value_or(*pause));
    }
    return first;
}

void Runner::save(const std::filesystem::path& checkpoint) {
    prepare_to_save();
    types_->save(state_, checkpoint);
}

void Runner::save(CheckpointWriter& writer, const std::vector<std::filesystem::path>& checkpoints) {
    prepare_to_save();
    types_->save(state_, writer, checkpoints);
}

/// Hooks, scaler and rates write their resume data to the state. Hooks are called for all steps that it counts.
void Runner::prepare_to_save() {
    if (reports_ || prepares_)
        throw InvalidArgument(fmt::format("Runner: save was called in {}; expected a call between steps",
                                          reports_ ? "after_step" : "before_save"));
    while (!unreported_.empty()) report_step();
    {
        const FlagScope prepares(prepares_);
        each(&RunHook::before_save);
    }
    if (options_.step.scaler) store_scaler(*options_.step.scaler, state_);
    if (!options_.step.rates) return;
    types_->engine().synchronize();
    store_rates(*options_.step.rates, state_);
}

}  // namespace lockstep
