// Learning rate and momentum from the norm and variance of the shards' gradients. A rule reads the measurements of past
// steps and sets the rates of the next one:
//
//     ls::AdaScale rates({.schedule = [](double steps) { return steps < 3000 ? 1 : 0.1; }});
//     while (rates.scale_invariant_steps() < 5000) model.step(sgd, x, y, loss, {.rates = &rates});
//
// All devices and ranks measure the same bits. The rates of a step depend on the steps before the previous one, which
// are finished by then. Nothing waits, and the weights are bit-identical on any number of devices and ranks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Measurements of a step's gradient, which is the mean of the gradients of `shards` shards, each weighted by its rows.
struct GradientMeasures {
    double shard_squares = 0;  ///< mean over the shards of the squared norm of a shard's own mean gradient
    double mean_square = 0;    ///< squared norm of the mean gradient
    int shards = 0;            ///< number of shards; in a step with microbatches, of pieces of shards

    /// Unbiased estimates, which may be negative: the squared norm of the true gradient, and the variance of one
    /// shard's gradient, summed over all elements. The variance of the mean is 1 / `shards` of it.
    double true_square() const;
    double shard_variance() const;
    /// Throws InvalidArgument for fewer than two shards, whose variance is unknown.
    void check() const;
};

/// Results of a step that may be in flight. Written once, by the thread that detects the end of the step.
struct MeasuredStep {
    enum class Outcome : std::uint8_t { taken, skipped, refused };
    std::atomic<bool> done = false;  ///< the other members are set
    Outcome outcome = Outcome::taken;
    GradientMeasures measures;  ///< set if the step had adaptive rates and was taken
};

/// Base of the rules. A rule is bound to the optimizer that it is first used with.
class AdaptiveRates {
public:
    AdaptiveRates() = default;
    virtual ~AdaptiveRates() = default;
    AdaptiveRates(const AdaptiveRates&) = delete;
    AdaptiveRates& operator=(const AdaptiveRates&) = delete;

    virtual const char* name() const = 0;
    /// Adds a step's measurements. Throws InvalidArgument as GradientMeasures::check.
    virtual void update(const GradientMeasures& measures) = 0;
    /// Sets the rates of all groups for the next step; before the first measurements, those of the optimizer apply.
    /// Throws InvalidArgument if the optimizer lacks a setting that the rule needs.
    virtual void set(Optimizer& optimizer) = 0;
    /// Number of single-shard steps that a step counts for, as set last; 1 unless a rule overrides it.
    virtual double gain() const { return 1; }

    /// State for resuming a run: numbers by name. Throws InvalidArgument while steps are in flight (`synchronize()` of
    /// the wrapper waits for them).
    std::map<std::string, double> state();
    /// Throws InvalidArgument if a number is missing.
    void load_state(const std::map<std::string, double>& state);

    // For wrappers.

    /// Called before a step: reads the measurements of the step before the previous one, which must be finished, and
    /// sets the optimizer. If steps were refused, the state is restored to that before the first of them. Throws as
    /// `set`, and InvalidArgument for a different optimizer.
    void begin_step(Optimizer& optimizer);
    /// Called after the step has begun; its results will be written to `step`.
    void follow(std::shared_ptr<const MeasuredStep> step);

protected:
    /// A step with too few rows for a second shard: it has no variance.
    virtual void pass() {}
    /// State that `update`, `pass` and `set` change.
    virtual std::map<std::string, double> numbers() const = 0;
    virtual void set_numbers(const std::map<std::string, double>& numbers) = 0;
    /// The number called `name`; throws if it is missing.
    double number(const std::map<std::string, double>& numbers, const std::string& name) const;
    /// As `number`, for an integer from 0 to `most`.
    std::int64_t count(const std::map<std::string, double>& numbers, const std::string& name, double most) const;

private:
    static constexpr std::size_t lag = 2;  ///< maximum number of steps in flight
    struct Pending {
        std::shared_ptr<const MeasuredStep> step;
        std::map<std::string, double> before = {};            ///< numbers before it began
        std::shared_ptr<const MeasuredStep> taken = nullptr;  ///< the step whose measurements it was the first to use
    };
    void take(const MeasuredStep& step);
    void undo(Pending begun);
    void undo_refused();

    std::optional<std::uint64_t> optimizer_;  ///< id of the optimizer
    std::deque<Pending> pending_;             ///< steps whose measurements have not been read, at most `lag`
    std::optional<Pending> next_;             ///< a step that is beginning, or failed to begin
};

/// Johnson, Agrawal, Gu, Guestrin: "AdaScale SGD: A User-Friendly Algorithm for Distributed Training" (ICML 2020). With
/// S shards a step is worth `gain()` single-shard steps, 1 <= gain <= S. Its rate is that of the single-shard schedule
/// times the gain, and the schedule advances by the gain.
class AdaScale final : public AdaptiveRates {
public:
    /// Options of AdaScale.
    struct Options {
        /// Factor on the optimizer's initial rates after `steps` single-shard steps; empty: 1. Replaces a learning rate
        /// schedule.
        std::function<double(double steps)> schedule = {};
    };
    AdaScale() = default;
    explicit AdaScale(Options options) : options_(std::move(options)) {}

    const char* name() const override { return "AdaScale"; }
    /// Averages decay by 1 - S / 1000 a step, as in the paper. Non-finite measurements are ignored; their step counts
    /// with the previous gain.
    void update(const GradientMeasures& measures) override;
    void set(Optimizer& optimizer) override;
    /// Gain of the last measured step; 1 before the first.
    double gain() const override { return gain_; }
    /// Number of single-shard steps that the run is worth: the argument of the schedule.
    double scale_invariant_steps() const { return steps_; }

private:
    void pass() override { steps_ += gain_; }
    std::map<std::string, double> numbers() const override;
    void set_numbers(const std::map<std::string, double>& numbers) override;

    Options options_;
    double square_ = 0, variance_ = 0, gain_ = 1, steps_ = 0;
    bool began_ = false;
    std::vector<double> initial_lr_;  ///< by group; empty before the first step
};

/// Zhang, Mitliagkas: "YellowFin and the Art of Momentum Tuning" (2017), with the variance over shards instead of over
/// time. Computes the momentum and rate of SGD that minimise the distance of a local quadratic model to its optimum
/// after a step.
class YellowFin final : public AdaptiveRates {
public:
    /// Options of YellowFin.
    struct Options {
        double smoothing = 0.999;  ///< decay of all averages, which are bias-corrected
        double lr_factor = 1;      ///< factor on the rate
    };
    YellowFin() : YellowFin(Options()) {}
    /// Throws InvalidArgument for a smoothing outside [0, 1), and a factor that is not above 0.
    explicit YellowFin(const Options& options);

    const char* name() const override { return "YellowFin"; }
    /// Non-finite measurements are ignored.
    void update(const GradientMeasures& measures) override;
    /// The optimizer must have a setting "momentum".
    void set(Optimizer& optimizer) override;
    /// Averages over the steps so far; 0 before the first.
    double momentum() const;
    double lr() const;

    /// Result of single_step.
    struct Tuned {
        double momentum = 0, lr = 0;
    };
    /// The paper's SingleStep: minimises momentum * distance^2 + lr^2 * variance. Constraints: momentum >= ((r - 1) /
    /// (r + 1))^2 and lr = (1 - sqrt(momentum))^2 / smallest. Here r = sqrt(largest / smallest); `smallest` and
    /// `largest` are curvatures.
    static Tuned single_step(double variance, double distance, double smallest, double largest);

private:
    static constexpr int window = 20;
    enum class Average : std::uint8_t { smallest, largest, variance, norm, square, distance, momentum, lr };
    static constexpr std::size_t averages = 8;
    double unbiased(Average which) const;
    std::map<std::string, double> numbers() const override;
    void set_numbers(const std::map<std::string, double>& numbers) override;

    Options options_;
    std::array<double, window> squares_{};  ///< squared norms of the last steps, the latest at `(steps_ - 1) % window`
    std::array<double, averages> averages_{};  ///< without bias correction
    std::int64_t steps_ = 0;
};

}  // namespace lockstep
