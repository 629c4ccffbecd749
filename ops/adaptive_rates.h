// Learning rate and momentum from the size and variance of the shards' gradients. A rule takes what steps have measured
// and sets the optimizer of the next one:
//
//     ls::AdaScale rates({.schedule = [](double steps) { return steps < 3000 ? 1 : 0.1; }});
//     while (rates.scale_invariant_steps() < 5000) model.step(sgd, x, y, loss, {.rates = &rates});
//
// Devices and ranks measure the same bits, and a step is set by what came before the last one, which is known by then:
// nobody waits, and the weights have the same bits on any number of devices and ranks.
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

/// What a step has to say of its gradient, the mean of those of `shards` shards. Where they have different numbers of
/// rows each counts by its rows.
struct GradientMeasures {
    double shard_squares = 0;  ///< mean over the shards of the squared norm of a shard's own mean gradient
    double mean_square = 0;    ///< squared norm of the mean gradient
    int shards = 0;            ///< of a step in microbatches: the pieces of shards

    /// Estimates without bias, which may be negative: the squared norm of the true gradient, and the variance of one
    /// shard's, summed over all elements. That of the mean is a `shards`-th of it.
    double true_square() const;
    double shard_variance() const;
    /// Throws InvalidArgument for fewer than two shards, from which no variance can be told.
    void check() const;
};

/// Numbers of a step that may be under way. Written once, by whoever sees that it is done.
struct MeasuredStep {
    enum class Outcome : std::uint8_t { taken, skipped, refused };
    std::atomic<bool> done = false;  ///< the other members are set
    Outcome outcome = Outcome::taken;
    GradientMeasures measures;  ///< of a step that was taken
};

/// Base of the rules. A rule belongs to the optimizer that it is first used with.
class AdaptiveRates {
public:
    AdaptiveRates() = default;
    virtual ~AdaptiveRates() = default;
    AdaptiveRates(const AdaptiveRates&) = delete;
    AdaptiveRates& operator=(const AdaptiveRates&) = delete;

    virtual const char* name() const = 0;
    /// Takes a step's measures. Throws InvalidArgument as GradientMeasures::check.
    virtual void update(const GradientMeasures& measures) = 0;
    /// Sets the rates of all groups for the next step; those of the optimizer hold until there are measures. Throws
    /// InvalidArgument where it lacks a setting that the rule needs.
    virtual void set(Optimizer& optimizer) = 0;
    /// How many steps of a single shard a step counts for, as it was set last; 1 unless a rule says otherwise.
    virtual double gain() const { return 1; }

    /// What a run needs to go on with this rule: numbers by name. Throws InvalidArgument while steps are under way
    /// (`synchronize()` of the wrapper waits for them).
    std::map<std::string, double> state();
    /// Throws InvalidArgument where a number is missing.
    void load_state(const std::map<std::string, double>& state);

    // For wrappers.

    /// Before a step: takes the measures of the step before the last one, which must be done, and sets the optimizer.
    /// Where steps were refused, all is as before the first of them. Throws as `set`, and InvalidArgument for another
    /// optimizer than before.
    void begin_step(Optimizer& optimizer);
    /// The step has begun, and will leave its numbers in `step`.
    void follow(std::shared_ptr<const MeasuredStep> step);

protected:
    /// A step of so few rows that they were one shard's: nothing can be told from it.
    virtual void pass() {}
    /// What `update`, `pass` and `set` change.
    virtual std::map<std::string, double> numbers() const = 0;
    virtual void set_numbers(const std::map<std::string, double>& numbers) = 0;
    /// `numbers` without the one that is called `name`: throws.
    double number(const std::map<std::string, double>& numbers, const std::string& name) const;
    /// The same for a whole number from 0 to `most`.
    std::int64_t count(const std::map<std::string, double>& numbers, const std::string& name, double most) const;

private:
    static constexpr std::size_t lag = 2;  ///< as many steps may be in flight
    struct Pending {
        std::shared_ptr<const MeasuredStep> step;
        std::map<std::string, double> before = {};            ///< numbers before it began
        std::shared_ptr<const MeasuredStep> taken = nullptr;  ///< the step whose measures it was the first to use
    };
    void take(const MeasuredStep& step);
    void undo(Pending begun);
    void undo_refused();

    std::optional<std::uint64_t> optimizer_;  ///< its id
    std::deque<Pending> pending_;             ///< steps whose measures have not been taken, `lag` at most
    std::optional<Pending> next_;             ///< a step that begins, or could not
};

/// Johnson, Agrawal, Gu, Guestrin: "AdaScale SGD: A User-Friendly Algorithm for Distributed Training" (ICML 2020): with
/// S shards a step is worth `gain()` steps of one shard, 1 <= gain <= S; its rate is that many times the one of a
/// single shard's schedule, which has then come so many steps further.
class AdaScale final : public AdaptiveRates {
public:
    struct Options {
        /// What the rates that the optimizer began with are multiplied by after so many steps of a single shard; empty:
        /// by 1. It takes the place of a schedule.
        std::function<double(double steps)> schedule = {};
    };
    AdaScale() = default;
    explicit AdaScale(Options options) : options_(std::move(options)) {}

    const char* name() const override { return "AdaScale"; }
    /// Averages decay by 1 - S / 1000 a step, as in the paper. Measures that are not finite are left out, and count as
    /// a step with the gain so far.
    void update(const GradientMeasures& measures) override;
    void set(Optimizer& optimizer) override;
    /// Of the last step that was measured; 1 before the first.
    double gain() const override { return gain_; }
    /// How many steps of a single shard the run is worth: what the schedule is asked with.
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

/// Zhang, Mitliagkas: "YellowFin and the Art of Momentum Tuning" (2017), with the variance that the shards show in
/// place of one over time: the momentum and rate of SGD that bring a local quadratic model closest to its optimum in a
/// step.
class YellowFin final : public AdaptiveRates {
public:
    struct Options {
        double smoothing = 0.999;  ///< of all averages, which start without bias
        double lr_factor = 1;      ///< what the rate is multiplied by
    };
    YellowFin() : YellowFin(Options()) {}
    /// Throws InvalidArgument for a smoothing that is not in [0, 1), and a factor that is not above 0.
    explicit YellowFin(const Options& options);

    const char* name() const override { return "YellowFin"; }
    /// Measures that are not finite are left out.
    void update(const GradientMeasures& measures) override;
    /// For an optimizer with a setting "momentum".
    void set(Optimizer& optimizer) override;
    /// Averages over the steps so far; 0 before the first.
    double momentum() const;
    double lr() const;

    struct Tuned {
        double momentum = 0, lr = 0;
    };
    /// The paper's SingleStep: least momentum * distance^2 + lr^2 * variance under momentum >= ((r - 1) / (r + 1))^2,
    /// r = sqrt(largest / smallest), curvatures both, and lr = (1 - sqrt(momentum))^2 / smallest.
    static Tuned single_step(double variance, double distance, double smallest, double largest);

private:
    static constexpr int window = 20;
    enum class Average : std::uint8_t { smallest, largest, variance, norm, square, distance, momentum, lr };
    static constexpr std::size_t averages = 8;
    double unbiased(Average which) const;
    std::map<std::string, double> numbers() const override;
    void set_numbers(const std::map<std::string, double>& numbers) override;

    Options options_;
    std::array<double, window> squares_{};     ///< of the last steps, the latest at `(steps_ - 1) % window`
    std::array<double, averages> averages_{};  ///< before their bias is taken out
    std::int64_t steps_ = 0;
};

}  // namespace lockstep
