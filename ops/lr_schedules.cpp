#include "lockstep/ops/lr_schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr double pi = std::numbers::pi;

void require(bool holds, const std::string& text) {
    if (!holds) throw InvalidArgument(text);
}

double number_in(const std::map<std::string, double>& state, const std::string& name) {
    const auto found = state.find(name);
    require(found != state.end(), fmt::format("the state of a schedule lacks {}; expected a result of state()", name));
    return found->second;
}

/// A non-negative integer within the range of real runs.
std::int64_t count_in(const std::map<std::string, double>& state, const std::string& name) {
    const double value = number_in(state, name);
    require(value >= 0 && value < 9e15 && value == std::floor(value),
            fmt::format("{} {} in the state of a schedule is invalid; expected an integer of 0 or more", name, value));
    return static_cast<std::int64_t>(value);
}

void require_per_group(const char* schedule, std::size_t factors, const Optimizer& optimizer) {
    require(static_cast<int>(factors) == optimizer.groups(),
            fmt::format("{}: {} factors for {} parameter groups; expected one for each", schedule, factors,
                        optimizer.groups()));
}

/// Name of the optimizer's momentum or first beta; throws if it has none.
const char* momentum_setting(const char* schedule, const Optimizer& optimizer) {
    const std::vector<std::string> names = optimizer.setting_names();
    for (const char* name : {"momentum", "betas.0"})
        if (std::find(names.begin(), names.end(), name) != names.end()) return name;
    throw InvalidArgument(
        fmt::format("{}: {} has no momentum; expected cycle_momentum = false", schedule, optimizer.name()));
}

using Schedules = std::vector<std::shared_ptr<LRSchedule>>;

/// Adds the states of all schedules; names begin with the schedule's number.
void add_states(const Schedules& schedules, std::map<std::string, double>& numbers) {
    for (std::size_t i = 0; i < schedules.size(); ++i)
        for (const auto& [name, value] : schedules[i]->state()) numbers[fmt::format("{}.{}", i, name)] = value;
}

void load_states(const Schedules& schedules, const std::map<std::string, double>& state) {
    for (std::size_t i = 0; i < schedules.size(); ++i) {
        const std::string prefix = fmt::format("{}.", i);
        std::map<std::string, double> own;
        for (const auto& [name, value] : state)
            if (name.starts_with(prefix)) own[name.substr(prefix.size())] = value;
        schedules[i]->load_state(own);
    }
}

/// Calls `load(state)`, or throws with the state unchanged.
template <class Load>
void load_or_restore(const LRSchedule& schedule, const std::map<std::string, double>& state, Load&& load) {
    const auto before = schedule.state();
    try {
        load(state);
    } catch (...) {
        load(before);
        throw;
    }
}

}  // namespace

// ---- base -------------------------------------------------------------------------------------------------------

LRSchedule::LRSchedule(Optimizer& optimizer) : optimizer_(optimizer) {
    optimizer.note_initial_lr();
    for (int group = 0; group < optimizer.groups(); ++group) last_lr_.push_back(optimizer.lr(group));
}

void LRSchedule::set(int group, double lr) {
    optimizer_.set_lr(lr, group);
    last_lr_[static_cast<std::size_t>(group)] = lr;
}

void LRSchedule::begin() {
    epoch_ = 0;
    rewind();
    for (int group = 0; group < std::ssize(last_lr_); ++group) set(group, first_lr(group, optimizer_.lr(group)));
}

void LRSchedule::restart() {
    for (int group = 0; group < std::ssize(last_lr_); ++group) optimizer_.set_lr(initial_lr(group), group);
    begin();
}

void LRSchedule::step() {
    ++epoch_;
    advance();
    for (int group = 0; group < std::ssize(last_lr_); ++group) set(group, next_lr(group, optimizer_.lr(group)));
}

double LRSchedule::number(const std::map<std::string, double>& state, const std::string& name) {
    return number_in(state, name);
}

std::map<std::string, double> LRSchedule::state() const {
    std::map<std::string, double> numbers{{"last_epoch", static_cast<double>(epoch_)}};
    for (int group = 0; group < std::ssize(last_lr_); ++group)
        numbers[fmt::format("initial_lr.{}", group)] = initial_lr(group);
    return numbers;
}

void LRSchedule::load_state(const std::map<std::string, double>& state) {
    const std::int64_t epoch = count_in(state, "last_epoch");
    std::vector<double> initial;
    for (std::size_t group = 0; group < last_lr_.size(); ++group) {
        const std::string name = fmt::format("initial_lr.{}", group);
        initial.push_back(number(state, name));
        require(
            initial.back() >= 0 && std::isfinite(initial.back()),
            fmt::format("{} {} in the state of a schedule is invalid; expected a learning rate", name, initial.back()));
    }
    epoch_ = epoch;
    for (int group = 0; group < std::ssize(last_lr_); ++group) {
        optimizer_.set_initial_lr(initial[static_cast<std::size_t>(group)], group);
        last_lr_[static_cast<std::size_t>(group)] = optimizer_.lr(group);
    }
}

// ---- factors ----------------------------------------------------------------------------------------------------

LambdaLR::LambdaLR(Optimizer& optimizer, const Factor& factor)
    : LambdaLR(optimizer, std::vector<Factor>(static_cast<std::size_t>(optimizer.groups()), factor)) {}

LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<Factor> factors)
    : LRSchedule(optimizer), factors_(std::move(factors)) {
    require_per_group("LambdaLR", factors_.size(), optimizer);
    begin();
}

double LambdaLR::next_lr(int group, double) const {
    return initial_lr(group) * factors_[static_cast<std::size_t>(group)](last_epoch());
}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, const Factor& factor)
    : MultiplicativeLR(optimizer, std::vector<Factor>(static_cast<std::size_t>(optimizer.groups()), factor)) {}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, std::vector<Factor> factors)
    : LRSchedule(optimizer), factors_(std::move(factors)) {
    require_per_group("MultiplicativeLR", factors_.size(), optimizer);
    begin();
}

double MultiplicativeLR::next_lr(int group, double lr) const {
    return lr * factors_[static_cast<std::size_t>(group)](last_epoch());
}

StepLR::StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRSchedule(optimizer), step_size_(step_size), gamma_(gamma) {
    require(step_size > 0, fmt::format("StepLR: invalid step_size ({}); expected a positive number", step_size));
    begin();
}

double StepLR::next_lr(int, double lr) const { return last_epoch() % step_size_ == 0 ? lr * gamma_ : lr; }

MultiStepLR::MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma)
    : LRSchedule(optimizer), milestones_(std::move(milestones)), gamma_(gamma) {
    begin();
}

double MultiStepLR::next_lr(int, double lr) const {
    const auto here = std::count(milestones_.begin(), milestones_.end(), last_epoch());
    return here == 0 ? lr : lr * std::pow(gamma_, static_cast<double>(here));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, double gamma) : LRSchedule(optimizer), gamma_(gamma) { begin(); }

double ExponentialLR::next_lr(int, double lr) const { return lr * gamma_; }

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options)
    : LRSchedule(optimizer), options_(options) {
    require(options.factor > 0 && options.factor <= 1,
            fmt::format("ConstantLR: invalid factor ({}); expected (0, 1]", options.factor));
    require(options.total_iters > 0,
            fmt::format("ConstantLR: invalid total_iters ({}); expected a positive number", options.total_iters));
    begin();
}

double ConstantLR::next_lr(int, double lr) const {
    return last_epoch() == options_.total_iters ? lr * (1 / options_.factor) : lr;
}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : LRSchedule(optimizer), options_(options) {
    require(options.total_iters > 0,
            fmt::format("PolynomialLR: invalid total_iters ({}); expected a positive number", options.total_iters));
    require(options.power >= 0, fmt::format("PolynomialLR: invalid power ({}); expected 0 or more", options.power));
    begin();
}

double PolynomialLR::next_lr(int, double lr) const {
    if (last_epoch() > options_.total_iters) return lr;
    const auto total = static_cast<double>(options_.total_iters), epoch = static_cast<double>(last_epoch());
    return lr * std::pow((1 - epoch / total) / (1 - (epoch - 1) / total), options_.power);
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options) : LRSchedule(optimizer), options_(options) {
    require(options.start_factor > 0 && options.start_factor <= 1,
            fmt::format("LinearLR: invalid start_factor ({}); expected (0, 1]", options.start_factor));
    require(options.end_factor >= 0 && options.end_factor <= 1,
            fmt::format("LinearLR: invalid end_factor ({}); expected [0, 1]", options.end_factor));
    require(options.total_iters > 0,
            fmt::format("LinearLR: invalid total_iters ({}); expected a positive number", options.total_iters));
    begin();
}

double LinearLR::next_lr(int, double lr) const {
    if (last_epoch() > options_.total_iters) return lr;
    const double change = options_.end_factor - options_.start_factor;
    const auto total = static_cast<double>(options_.total_iters), before = static_cast<double>(last_epoch() - 1);
    return lr * (1 + change / (total * options_.start_factor + before * change));
}

// ---- cosines ----------------------------------------------------------------------------------------------------

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min)
    : LRSchedule(optimizer), t_max_(t_max), eta_min_(eta_min) {
    require(t_max > 0, fmt::format("CosineAnnealingLR: invalid t_max ({}); expected a positive number", t_max));
    begin();
}

double CosineAnnealingLR::next_lr(int group, double lr) const {
    const auto t_max = static_cast<double>(t_max_), epoch = static_cast<double>(last_epoch());
    if ((last_epoch() - 1 - t_max_) % (2 * t_max_) == 0)
        return lr + (initial_lr(group) - eta_min_) * (1 - std::cos(pi / t_max)) / 2;
    return (1 + std::cos(pi * epoch / t_max)) / (1 + std::cos(pi * (epoch - 1) / t_max)) * (lr - eta_min_) + eta_min_;
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer, std::int64_t t_0, std::int64_t t_mult,
                                                         double eta_min)
    : LRSchedule(optimizer), t_0_(t_0), t_mult_(t_mult), eta_min_(eta_min), until_restart_(t_0) {
    require(t_0 > 0, fmt::format("CosineAnnealingWarmRestarts: invalid t_0 ({}); expected a positive number", t_0));
    require(t_mult >= 1, fmt::format("CosineAnnealingWarmRestarts: invalid t_mult ({}); expected at least 1", t_mult));
    begin();
}

void CosineAnnealingWarmRestarts::advance() {
    if (++since_restart_ < until_restart_) return;
    since_restart_ -= until_restart_;
    until_restart_ *= t_mult_;
}

void CosineAnnealingWarmRestarts::rewind() {
    since_restart_ = 0;
    until_restart_ = t_0_;
}

double CosineAnnealingWarmRestarts::next_lr(int group, double) const {
    const double share = static_cast<double>(since_restart_) / static_cast<double>(until_restart_);
    return eta_min_ + (initial_lr(group) - eta_min_) * (1 + std::cos(pi * share)) / 2;
}

std::map<std::string, double> CosineAnnealingWarmRestarts::state() const {
    auto numbers = LRSchedule::state();
    numbers["since_restart"] = static_cast<double>(since_restart_);
    numbers["until_restart"] = static_cast<double>(until_restart_);
    return numbers;
}

void CosineAnnealingWarmRestarts::load_state(const std::map<std::string, double>& state) {
    const std::int64_t since = count_in(state, "since_restart"), until = count_in(state, "until_restart");
    require(until > since,
            "the state of CosineAnnealingWarmRestarts is outside of a cycle; expected since_restart < until_restart");
    LRSchedule::load_state(state);
    since_restart_ = since;
    until_restart_ = until;
}

// ---- one cycle --------------------------------------------------------------------------------------------------

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : LRSchedule(optimizer), options_(options) {
    require(options.total_steps > 0,
            fmt::format("OneCycleLR: invalid total_steps ({}); expected a positive number", options.total_steps));
    require(options.pct_start >= 0 && options.pct_start <= 1,
            fmt::format("OneCycleLR: invalid pct_start ({}); expected [0, 1]", options.pct_start));
    if (options.cycle_momentum) momentum_ = momentum_setting("OneCycleLR", optimizer);
    const double first = options.max_lr / options.div_factor, last = first / options.final_div_factor;
    const double most = options.max_momentum, least = options.base_momentum;
    const auto total = static_cast<double>(options.total_steps), rise = options.pct_start * total;
    if (options.three_phase)
        phases_ = {{rise - 1, first, options.max_lr, most, least},
                   {2 * rise - 2, options.max_lr, first, least, most},
                   {total - 1, first, last, most, most}};
    else
        phases_ = {{rise - 1, first, options.max_lr, most, least}, {total - 1, options.max_lr, last, least, most}};
    for (int group = 0; group < optimizer.groups(); ++group) optimizer.set_initial_lr(first, group);
    begin();
}

double OneCycleLR::between(double from, double to, double share) const {
    return options_.linear ? (to - from) * share + from : to + (from - to) / 2 * (1 + std::cos(pi * share));
}

template <class Value>
double OneCycleLR::in_phase(Value&& value) const {
    const auto step = static_cast<double>(last_epoch());
    double start = 0;
    for (std::size_t i = 0; i + 1 < phases_.size(); start = phases_[i++].end)
        if (step <= phases_[i].end) return value(phases_[i], (step - start) / (phases_[i].end - start));
    return value(phases_.back(), (step - start) / (phases_.back().end - start));
}

double OneCycleLR::next_lr(int, double) const {
    require(last_epoch() <= options_.total_steps,
            fmt::format("OneCycleLR: tried to step {} times. The specified number of total steps is {}", last_epoch(),
                        options_.total_steps));
    return in_phase([&](const Phase& phase, double share) { return between(phase.lr_from, phase.lr_to, share); });
}

void OneCycleLR::advance() {
    if (!momentum_ || last_epoch() > options_.total_steps) return;
    const double momentum = in_phase(
        [&](const Phase& phase, double share) { return between(phase.momentum_from, phase.momentum_to, share); });
    for (int group = 0; group < optimizer().groups(); ++group) optimizer().set_setting(momentum_, momentum, group);
}

// ---- cycles -----------------------------------------------------------------------------------------------------

namespace {

/// Sets the rates from which a first schedule starts.
Optimizer& at_base_lr(Optimizer& optimizer, const CyclicLROptions& options) {
    require(options.step_size_up > 0,
            fmt::format("CyclicLR: invalid step_size_up ({}); expected a positive number", options.step_size_up));
    const std::int64_t down = options.step_size_down.value_or(options.step_size_up);
    require(down >= 0, fmt::format("CyclicLR: invalid step_size_down ({}); expected 0 or more", down));
    for (const double lr : {options.base_lr, options.max_lr})
        require(lr >= 0, fmt::format("CyclicLR: invalid rate ({}); expected 0 or more", lr));
    if (options.cycle_momentum) static_cast<void>(momentum_setting("CyclicLR", optimizer));
    for (int group = 0; group < optimizer.groups(); ++group) optimizer.set_lr(options.base_lr, group);
    return optimizer;
}

}  // namespace

CyclicLR::CyclicLR(Optimizer& optimizer, const CyclicLROptions& options)
    : LRSchedule(at_base_lr(optimizer, options)), options_(options) {
    if (options.cycle_momentum) momentum_ = momentum_setting("CyclicLR", optimizer);
    begin();
}

double CyclicLR::rise(double range) const {
    const auto up = static_cast<double>(options_.step_size_up), step = static_cast<double>(last_epoch());
    const double total = up + static_cast<double>(options_.step_size_down.value_or(options_.step_size_up));
    const double cycle = std::floor(1 + step / total), share = 1 + step / total - cycle, peak = up / total;
    const double height = range * (share <= peak ? share / peak : (share - 1) / (peak - 1));
    if (options_.mode == CyclicMode::triangular2) return height / std::exp2(cycle - 1);
    return options_.mode == CyclicMode::exp_range ? height * std::pow(options_.gamma, step) : height;
}

double CyclicLR::next_lr(int, double) const { return options_.base_lr + rise(options_.max_lr - options_.base_lr); }

void CyclicLR::advance() {
    if (!momentum_) return;
    const double momentum = options_.max_momentum - rise(options_.max_momentum - options_.base_momentum);
    for (int group = 0; group < optimizer().groups(); ++group) optimizer().set_setting(momentum_, momentum, group);
}

// ---- one after another ------------------------------------------------------------------------------------------

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<std::shared_ptr<LRSchedule>> schedules,
                           std::vector<std::int64_t> milestones)
    : LRSchedule(optimizer), schedules_(std::move(schedules)), milestones_(std::move(milestones)) {
    require(!schedules_.empty(), "SequentialLR: no schedules; expected at least one");
    require(schedules_.size() == milestones_.size() + 1,
            fmt::format("SequentialLR: {} schedules and {} milestones; expected one milestone fewer than schedules",
                        schedules_.size(), milestones_.size()));
    for (const auto& schedule : schedules_)
        require(&schedule->optimizer() == &optimizer,
                "SequentialLR: a schedule belongs to another optimizer; expected one optimizer for all");
    LRSchedule& first = current();
    first.restart();
    last_lr_ = first.last_lr_;
}

LRSchedule& SequentialLR::current() const {
    const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), last_epoch());
    return *schedules_[static_cast<std::size_t>(next - milestones_.begin())];
}

void SequentialLR::advance() {
    const bool begins = std::find(milestones_.begin(), milestones_.end(), last_epoch()) != milestones_.end();
    begins ? current().restart() : current().step();
}

double SequentialLR::next_lr(int, double lr) const { return lr; }  // set by the schedule just now

std::map<std::string, double> SequentialLR::state() const {
    auto numbers = LRSchedule::state();
    add_states(schedules_, numbers);
    return numbers;
}

void SequentialLR::load_state(const std::map<std::string, double>& state) {
    load_or_restore(*this, state, [this](const std::map<std::string, double>& numbers) {
        load_states(schedules_, numbers);
        LRSchedule::load_state(numbers);
    });
}

// ---- at once ----------------------------------------------------------------------------------------------------

namespace {

Optimizer& common_optimizer(const Schedules& schedules, Optimizer& (*optimizer_of)(const LRSchedule&)) {
    require(!schedules.empty(), "ChainedScheduler: no schedules; expected at least one");
    Optimizer& common = optimizer_of(*schedules.front());
    for (const auto& schedule : schedules)
        require(&optimizer_of(*schedule) == &common,
                "ChainedScheduler: a schedule belongs to another optimizer; expected one optimizer for all");
    return common;
}

}  // namespace

ChainedScheduler::ChainedScheduler(std::vector<std::shared_ptr<LRSchedule>> schedules)
    : LRSchedule(
          common_optimizer(schedules, [](const LRSchedule& schedule) -> Optimizer& { return schedule.optimizer_; })),
      schedules_(std::move(schedules)) {}

void ChainedScheduler::advance() {
    for (const auto& schedule : schedules_) schedule->step();
}

void ChainedScheduler::rewind() {
    for (const auto& schedule : schedules_) schedule->begin();
}

std::map<std::string, double> ChainedScheduler::state() const {
    auto numbers = LRSchedule::state();
    add_states(schedules_, numbers);
    return numbers;
}

void ChainedScheduler::load_state(const std::map<std::string, double>& state) {
    load_or_restore(*this, state, [this](const std::map<std::string, double>& numbers) {
        load_states(schedules_, numbers);
        LRSchedule::load_state(numbers);
    });
}

// ---- on a plateau -----------------------------------------------------------------------------------------------

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : optimizer_(optimizer), options_(options) {
    require(options.factor < 1,
            fmt::format("ReduceLROnPlateau: invalid factor ({}); expected less than 1", options.factor));
    constexpr double infinity = std::numeric_limits<double>::infinity();
    best_ = options.maximize ? -infinity : infinity;
}

bool ReduceLROnPlateau::is_better(double metric) const {
    const double threshold = options_.threshold;
    if (options_.maximize) return metric > (options_.absolute ? best_ + threshold : best_ * (1 + threshold));
    return metric < (options_.absolute ? best_ - threshold : best_ * (1 - threshold));
}

void ReduceLROnPlateau::step(double metric) {
    if (is_better(metric)) {
        best_ = metric;
        bad_epochs_ = 0;
    } else {
        ++bad_epochs_;
    }
    if (cooldown_left_ > 0) {
        --cooldown_left_;
        bad_epochs_ = 0;
    }
    if (bad_epochs_ <= options_.patience) return;
    for (int group = 0; group < optimizer_.groups(); ++group) {
        const double old = optimizer_.lr(group), reduced = std::max(old * options_.factor, options_.min_lr);
        if (old - reduced > options_.eps) optimizer_.set_lr(reduced, group);
    }
    cooldown_left_ = options_.cooldown;
    bad_epochs_ = 0;
}

std::map<std::string, double> ReduceLROnPlateau::state() const {
    return {{"best", best_},
            {"bad_epochs", static_cast<double>(bad_epochs_)},
            {"cooldown_left", static_cast<double>(cooldown_left_)}};
}

void ReduceLROnPlateau::load_state(const std::map<std::string, double>& state) {
    const double best = number_in(state, "best");
    require(!std::isnan(best), "best nan in the state of a schedule is invalid; expected a number");
    const std::int64_t bad = count_in(state, "bad_epochs"), left = count_in(state, "cooldown_left");
    best_ = best;
    bad_epochs_ = bad;
    cooldown_left_ = left;
}

}  // namespace lockstep
