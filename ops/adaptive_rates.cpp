#include "lockstep/ops/adaptive_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

bool is_finite(const GradientMeasures& measures) {
    return std::isfinite(measures.shard_squares) && std::isfinite(measures.mean_square);
}

/// Lower bound: every gradient has some noise and curvature.
constexpr double least = 1e-30;

/// In the order of YellowFin's averages.
constexpr std::array average_names{"smallest", "largest", "variance", "norm", "square", "distance", "momentum", "lr"};

/// Limits that no real run exceeds, only damaged data.
constexpr double max_steps = 9e15, max_groups = 1e6, max_shards = 1e9;

constexpr const char* under_way = "under_way";
std::string of_pending(std::size_t index, const char* what) { return fmt::format("{}.{}.{}", under_way, index, what); }

}  // namespace

double GradientMeasures::shard_variance() const { return (shard_squares - mean_square) * shards / (shards - 1); }

double GradientMeasures::true_square() const { return mean_square - shard_variance() / shards; }

void GradientMeasures::check() const {
    if (shards < 2)
        throw InvalidArgument(fmt::format(
            "adaptive rates: the variance of gradients is unknown with {} shards; expected at least two", shards));
}

// ---- steps under way ----------------------------------------------------------------------------------------------

void AdaptiveRates::take(const MeasuredStep& step) {
    if (step.outcome != MeasuredStep::Outcome::taken) return;
    if (step.measures.shards < 2)
        pass();
    else
        update(step.measures);
}

/// Restores the state before the step, which is the last one.
void AdaptiveRates::undo(Pending begun) {
    set_numbers(begun.before);
    if (begun.taken) pending_.push_front({std::move(begun.taken)});
}

void AdaptiveRates::undo_refused() {
    const auto is_refused = [](const Pending& pending) {
        return pending.step->done && pending.step->outcome == MeasuredStep::Outcome::refused;
    };
    if (pending_.empty() || !is_refused(pending_.back())) return;
    if (next_) undo(*std::exchange(next_, std::nullopt));
    while (!pending_.empty() && is_refused(pending_.back())) {  // earlier steps may have been refused as well
        Pending last = std::move(pending_.back());
        pending_.pop_back();
        undo(std::move(last));
    }
}

void AdaptiveRates::begin_step(Optimizer& optimizer) {
    if (optimizer_.value_or(optimizer.id()) != optimizer.id())
        throw InvalidArgument(
            fmt::format("step: this {} belongs to another optimizer; expected one rule per optimizer", name()));
    undo_refused();
    if (!next_) {  // otherwise the last call did not lead to a step
        next_ = Pending{nullptr, numbers(), nullptr};
        if (pending_.size() == lag) {
            next_->taken = pending_.front().step;
            pending_.pop_front();
            take(*next_->taken);
        }
    }
    set(optimizer);
    optimizer_ = optimizer.id();
}

void AdaptiveRates::follow(std::shared_ptr<const MeasuredStep> step) {
    next_->step = std::move(step);
    pending_.push_back(*std::exchange(next_, std::nullopt));
}

std::map<std::string, double> AdaptiveRates::state() {
    undo_refused();
    if (next_) undo(*std::exchange(next_, std::nullopt));
    std::map<std::string, double> all = numbers();
    all[under_way] = static_cast<double>(pending_.size());
    for (std::size_t i = 0; i < pending_.size(); ++i) {
        const MeasuredStep& step = *pending_[i].step;
        if (!step.done)
            throw InvalidArgument(
                fmt::format("{}: a step is in flight; expected synchronize() of the model before state()", name()));
        all[of_pending(i, "skipped")] = step.outcome == MeasuredStep::Outcome::skipped ? 1 : 0;
        all[of_pending(i, "shard_squares")] = step.measures.shard_squares;
        all[of_pending(i, "mean_square")] = step.measures.mean_square;
        all[of_pending(i, "shards")] = step.measures.shards;
    }
    return all;
}

void AdaptiveRates::load_state(const std::map<std::string, double>& state) {
    // measures of pending steps may be those of an overflow
    for (const auto& [name, value] : state)
        if (!name.starts_with(under_way) && !std::isfinite(value))
            throw InvalidArgument(fmt::format("{}: {} {} in the state is not finite; expected a finite number",
                                              this->name(), name, value));
    std::deque<Pending> pending;
    const auto steps = static_cast<std::size_t>(count(state, under_way, lag));
    for (std::size_t i = 0; i < steps; ++i) {
        auto step = std::make_shared<MeasuredStep>();
        if (number(state, of_pending(i, "skipped")) != 0) step->outcome = MeasuredStep::Outcome::skipped;
        step->measures = {number(state, of_pending(i, "shard_squares")), number(state, of_pending(i, "mean_square")),
                          static_cast<int>(count(state, of_pending(i, "shards"), max_shards))};
        step->done = true;
        pending.push_back({std::move(step)});
    }
    set_numbers(state);
    pending_ = std::move(pending);
    next_.reset();
}

double AdaptiveRates::number(const std::map<std::string, double>& numbers, const std::string& name) const {
    const auto found = numbers.find(name);
    if (found == numbers.end())
        throw InvalidArgument(
            fmt::format("{}: the state has no number \"{}\"; expected the state of such a rule", this->name(), name));
    return found->second;
}

std::int64_t AdaptiveRates::count(const std::map<std::string, double>& numbers, const std::string& name,
                                  double most) const {
    const double value = number(numbers, name);
    if (!(value >= 0 && value <= most && value == std::floor(value)))
        throw InvalidArgument(fmt::format("{}: {} {} in the state is invalid; expected an integer from 0 to {}",
                                          this->name(), name, value, most));
    return static_cast<std::int64_t>(value);
}

// ---- AdaScale -----------------------------------------------------------------------------------------------------

void AdaScale::update(const GradientMeasures& measures) {
    measures.check();
    if (is_finite(measures)) {
        const double decay = began_ ? std::max(1 - measures.shards / 1000.0, 0.0) : 0;
        square_ = decay * square_ + (1 - decay) * measures.true_square();
        variance_ = decay * variance_ + (1 - decay) * measures.shard_variance();
        began_ = true;
        const double noise = std::max(variance_, least), slope = std::max(square_, 0.0);
        gain_ = (noise + slope) / (noise / measures.shards + slope);
    }
    steps_ += gain_;
}

void AdaScale::set(Optimizer& optimizer) {
    for (int group = static_cast<int>(initial_lr_.size()); group < optimizer.groups(); ++group)
        initial_lr_.push_back(optimizer.lr(group));
    const double factor = gain_ * (options_.schedule ? options_.schedule(steps_) : 1);
    for (int group = 0; group < optimizer.groups(); ++group)
        optimizer.set_lr(initial_lr_[static_cast<std::size_t>(group)] * factor, group);
}

std::map<std::string, double> AdaScale::numbers() const {
    std::map<std::string, double> all{{"square", square_},       {"variance", variance_},
                                      {"gain", gain_},           {"scale_invariant_steps", steps_},
                                      {"began", began_ ? 1 : 0}, {"groups", static_cast<double>(initial_lr_.size())}};
    for (std::size_t group = 0; group < initial_lr_.size(); ++group)
        all[fmt::format("initial_lr.{}", group)] = initial_lr_[group];
    return all;
}

void AdaScale::set_numbers(const std::map<std::string, double>& numbers) {
    std::vector<double> initial_lr;
    const std::int64_t groups = count(numbers, "groups", max_groups);
    while (std::ssize(initial_lr) < groups)
        initial_lr.push_back(number(numbers, fmt::format("initial_lr.{}", initial_lr.size())));
    square_ = number(numbers, "square");
    variance_ = number(numbers, "variance");
    gain_ = number(numbers, "gain");
    steps_ = number(numbers, "scale_invariant_steps");
    began_ = number(numbers, "began") != 0;
    initial_lr_ = std::move(initial_lr);
}

// ---- YellowFin ----------------------------------------------------------------------------------------------------

YellowFin::YellowFin(const Options& options) : options_(options) {
    if (!(options.smoothing >= 0 && options.smoothing < 1))
        throw InvalidArgument(fmt::format("YellowFin: invalid smoothing ({}); expected [0, 1)", options.smoothing));
    if (!(options.lr_factor > 0 && std::isfinite(options.lr_factor)))
        throw InvalidArgument(
            fmt::format("YellowFin: invalid lr_factor ({}); expected a finite number above 0", options.lr_factor));
}

YellowFin::Tuned YellowFin::single_step(double variance, double distance, double smallest, double largest) {
    // With x = sqrt(momentum): minimises x^2 D^2 + (1 - x)^4 C / h^2, where y = x - 1 solves y^3 + p y + p = 0.
    const double p = distance * distance * smallest * smallest / (2 * std::max(variance, least));
    double x = 0;
    if (p < 1e12) {  // beyond this, momentum has only disadvantages
        const double w3 = -(std::sqrt(p * p + 4.0 / 27.0 * p * p * p) + p) / 2;
        const double w = std::cbrt(w3);
        x = w == 0 ? 1 : std::clamp(w - p / (3 * w) + 1, 0.0, 1.0);
    }
    const double condition = std::sqrt(largest / smallest);
    x = std::max(x, (condition - 1) / (condition + 1));
    return {x * x, (1 - x) * (1 - x) / smallest};
}

void YellowFin::update(const GradientMeasures& measures) {
    measures.check();
    if (!is_finite(measures)) return;
    const double latest = std::max(measures.mean_square, least);
    squares_[static_cast<std::size_t>(steps_ % window)] = latest;
    ++steps_;
    const auto end = squares_.begin() + std::min<std::int64_t>(steps_, window);
    const auto average = [&](Average which, double next) {
        double& all = averages_[static_cast<std::size_t>(which)];
        all = options_.smoothing * all + (1 - options_.smoothing) * next;
        return unbiased(which);
    };
    const double smallest = average(Average::smallest, *std::min_element(squares_.begin(), end));
    const double largest = average(Average::largest, *std::max_element(squares_.begin(), end));
    const double variance = std::max(average(Average::variance, measures.shard_variance() / measures.shards), 0.0);
    const double norm = average(Average::norm, std::sqrt(latest)), square = average(Average::square, latest);
    const double distance = average(Average::distance, norm / square);
    const Tuned tuned = single_step(variance, distance, smallest, largest);
    average(Average::momentum, tuned.momentum);
    average(Average::lr, tuned.lr);
}

double YellowFin::unbiased(Average which) const {
    if (steps_ == 0) return 0;
    const double all = averages_[static_cast<std::size_t>(which)];
    return all / (1 - std::pow(options_.smoothing, static_cast<double>(steps_)));
}

double YellowFin::momentum() const { return unbiased(Average::momentum); }
double YellowFin::lr() const { return options_.lr_factor * unbiased(Average::lr); }

void YellowFin::set(Optimizer& optimizer) {
    for (int group = 0; group < optimizer.groups(); ++group) {
        static_cast<void>(optimizer.setting("momentum", group));  // without one it throws before the first step
        if (steps_ == 0) continue;
        optimizer.set_setting("momentum", momentum(), group);
        optimizer.set_lr(lr(), group);
    }
}

std::map<std::string, double> YellowFin::numbers() const {
    std::map<std::string, double> all{{"steps", static_cast<double>(steps_)}};
    for (std::size_t i = 0; i < squares_.size(); ++i) all[fmt::format("squares.{}", i)] = squares_[i];
    for (std::size_t i = 0; i < averages_.size(); ++i) all[average_names[i]] = averages_[i];
    return all;
}

void YellowFin::set_numbers(const std::map<std::string, double>& numbers) {
    YellowFin read(options_);
    read.steps_ = count(numbers, "steps", max_steps);
    for (std::size_t i = 0; i < squares_.size(); ++i) read.squares_[i] = number(numbers, fmt::format("squares.{}", i));
    for (std::size_t i = 0; i < averages_.size(); ++i) read.averages_[i] = number(numbers, average_names[i]);
    steps_ = read.steps_;
    squares_ = read.squares_;
    averages_ = read.averages_;
}

}  // namespace lockstep
