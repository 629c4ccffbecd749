// Learning rate schedules: torch.optim.lr_scheduler. A schedule belongs to an optimizer, whose initial rates are those
// of its groups when its first schedule is created. `step()` sets the rates of all groups. Call it after every epoch or
// every step, depending on the unit of the schedule's arguments. Values, defaults and order are PyTorch's. In several
// processes all ranks must make the same calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/ops/optimizer.h"

namespace lockstep {

/// Base of the schedules that count their steps (torch's LRScheduler). Refers to the optimizer, which must outlive it.
class LRSchedule {
public:
    virtual ~LRSchedule() = default;
    LRSchedule(const LRSchedule&) = delete;
    LRSchedule& operator=(const LRSchedule&) = delete;

    /// Sets the rates of the next epoch (or step).
    void step();
    /// Number of steps so far.
    std::int64_t last_epoch() const { return epoch_; }
    /// The rates that were set last, by group.
    const std::vector<double>& last_lr() const { return last_lr_; }

    /// State for resuming a run: numbers by name. The rates themselves are stored with the optimizer.
    virtual std::map<std::string, double> state() const;
    /// Throws InvalidArgument if a number is missing.
    virtual void load_state(const std::map<std::string, double>& state);

protected:
    explicit LRSchedule(Optimizer& optimizer);
    /// Sets the rates of epoch 0. Call it at the end of constructors.
    void begin();
    Optimizer& optimizer() const { return optimizer_; }
    double initial_lr(int group) const { return optimizer_.initial_lr(group); }
    /// The rate of a group in epoch `last_epoch()`; `lr` is its present rate.
    virtual double next_lr(int group, double lr) const = 0;
    /// The rate of a group in epoch 0.
    virtual double first_lr(int, double lr) const { return lr; }
    /// Updates additional state in every epoch, and resets it for epoch 0.
    virtual void advance() {}
    virtual void rewind() {}
    /// The number `name` of `state`; throws if it is missing.
    static double number(const std::map<std::string, double>& state, const std::string& name);

private:
    friend class SequentialLR;
    friend class ChainedScheduler;
    /// Restarts at epoch 0 with the initial rates.
    void restart();
    void set(int group, double lr);

    Optimizer& optimizer_;
    std::vector<double> last_lr_;
    std::int64_t epoch_ = 0;
};

/// initial rate * factor(epoch); one factor for each group, or one for all.
class LambdaLR final : public LRSchedule {
public:
    using Factor = std::function<double(std::int64_t epoch)>;
    LambdaLR(Optimizer& optimizer, const Factor& factor);
    /// Throws InvalidArgument unless there is one factor per group.
    LambdaLR(Optimizer& optimizer, std::vector<Factor> factors);

private:
    double next_lr(int group, double lr) const override;
    double first_lr(int group, double lr) const override { return next_lr(group, lr); }
    std::vector<Factor> factors_;
};

/// Multiplies the rate by factor(epoch) in every epoch after epoch 0; one factor for each group, or one for all.
class MultiplicativeLR final : public LRSchedule {
public:
    using Factor = LambdaLR::Factor;
    MultiplicativeLR(Optimizer& optimizer, const Factor& factor);
    /// Throws InvalidArgument unless there is one factor per group.
    MultiplicativeLR(Optimizer& optimizer, std::vector<Factor> factors);

private:
    double next_lr(int group, double lr) const override;
    std::vector<Factor> factors_;
};

/// Multiplies the rate by `gamma` every `step_size` epochs.
class StepLR final : public LRSchedule {
public:
    StepLR(Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

private:
    double next_lr(int group, double lr) const override;
    std::int64_t step_size_;
    double gamma_;
};

/// Multiplies the rate by `gamma` at each milestone, twice at a duplicate.
class MultiStepLR final : public LRSchedule {
public:
    MultiStepLR(Optimizer& optimizer, std::vector<std::int64_t> milestones, double gamma = 0.1);

private:
    double next_lr(int group, double lr) const override;
    std::vector<std::int64_t> milestones_;
    double gamma_;
};

/// Multiplies the rate by `gamma` every epoch.
class ExponentialLR final : public LRSchedule {
public:
    ExponentialLR(Optimizer& optimizer, double gamma);

private:
    double next_lr(int group, double lr) const override;
    double gamma_;
};

/// Options of ConstantLR.
struct ConstantLROptions {
    double factor = 1.0 / 3;
    std::int64_t total_iters = 5;
};
/// The initial rate times `factor` in the first total_iters epochs, then the initial rate.
class ConstantLR final : public LRSchedule {
public:
    /// Throws InvalidArgument unless 0 < factor <= 1 and total_iters > 0.
    explicit ConstantLR(Optimizer& optimizer, const ConstantLROptions& options = {});

private:
    double next_lr(int group, double lr) const override;
    double first_lr(int, double lr) const override { return lr * options_.factor; }
    ConstantLROptions options_;
};

/// Options of PolynomialLR.
struct PolynomialLROptions {
    std::int64_t total_iters = 5;
    double power = 1;
};
/// The initial rate times (1 - epoch / total_iters)^power, and 0 from epoch total_iters on.
class PolynomialLR final : public LRSchedule {
public:
    /// Throws InvalidArgument unless total_iters > 0 and power >= 0.
    explicit PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options = {});

private:
    double next_lr(int group, double lr) const override;
    PolynomialLROptions options_;
};

/// Options of LinearLR.
struct LinearLROptions {
    double start_factor = 1.0 / 3;
    double end_factor = 1;
    std::int64_t total_iters = 5;
};
/// The initial rate times a factor that changes linearly from start_factor to end_factor in total_iters epochs.
class LinearLR final : public LRSchedule {
public:
    /// Throws InvalidArgument unless 0 < start_factor <= 1 and 0 <= end_factor <= 1.
    explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});

private:
    double next_lr(int group, double lr) const override;
    double first_lr(int, double lr) const override { return lr * options_.start_factor; }
    LinearLROptions options_;
};

/// Half a cosine from the initial rate to `eta_min` in `t_max` epochs, and back in the next `t_max` (Loshchilov and
/// Hutter, 2017, without restarts).
class CosineAnnealingLR final : public LRSchedule {
public:
    CosineAnnealingLR(Optimizer& optimizer, std::int64_t t_max, double eta_min = 0);

private:
    double next_lr(int group, double lr) const override;
    std::int64_t t_max_;
    double eta_min_;
};

/// The same with restarts: after t_0 epochs, then after periods that grow by the factor `t_mult`.
class CosineAnnealingWarmRestarts final : public LRSchedule {
public:
    CosineAnnealingWarmRestarts(Optimizer& optimizer, std::int64_t t_0, std::int64_t t_mult = 1, double eta_min = 0);
    std::map<std::string, double> state() const override;
    void load_state(const std::map<std::string, double>& state) override;

private:
    double next_lr(int group, double lr) const override;
    double first_lr(int group, double lr) const override { return next_lr(group, lr); }
    void advance() override;
    void rewind() override;
    std::int64_t t_0_, t_mult_;
    double eta_min_;
    std::int64_t since_restart_ = 0, until_restart_;
};

/// Options of OneCycleLR.
struct OneCycleLROptions {
    double max_lr = 0;             ///< highest rate, for all groups
    std::int64_t total_steps = 0;  ///< length of the cycle
    double pct_start = 0.3;        ///< fraction of the steps in which the rate rises
    bool linear = false;           ///< linear instead of cosine annealing
    /// Cycles the momentum (or the first beta) from max_momentum to base_momentum and back. The optimizer must have
    /// one.
    bool cycle_momentum = true;
    double base_momentum = 0.85, max_momentum = 0.95;
    double div_factor = 25;         ///< initial rate: max_lr / div_factor
    double final_div_factor = 1e4;  ///< last rate: initial rate / final_div_factor
    bool three_phase = false;       ///< returns to the initial rate first, then decreases to the last one
};
/// One cycle of the rate over a whole training, stepped after every step (Smith and Topin, 2019).
class OneCycleLR final : public LRSchedule {
public:
    /// Throws InvalidArgument for invalid steps or fractions, and if there is no momentum to cycle.
    OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);

private:
    struct Phase {
        double end, lr_from, lr_to, momentum_from, momentum_to;
    };
    /// Throws InvalidArgument after the last step.
    double next_lr(int group, double lr) const override;
    double first_lr(int group, double lr) const override { return next_lr(group, lr); }
    void advance() override;
    void rewind() override { advance(); }
    /// Calls `value(phase, share)` with the phase of the epoch and the elapsed fraction of it.
    template <class Value>
    double in_phase(Value&& value) const;
    double between(double from, double to, double share) const;
    OneCycleLROptions options_;
    std::vector<Phase> phases_;
    const char* momentum_ = nullptr;  ///< the setting that is cycled; null if none is
};

/// Height of the cycles of CyclicLR.
enum class CyclicMode : std::uint8_t {
    triangular,   ///< constant
    triangular2,  ///< halved after every cycle
    exp_range     ///< multiplied by gamma^step
};
/// Options of CyclicLR.
struct CyclicLROptions {
    double base_lr = 0, max_lr = 0;                   ///< lowest and highest rate, for all groups
    std::int64_t step_size_up = 2000;                 ///< steps in which the rate rises
    std::optional<std::int64_t> step_size_down = {};  ///< steps in which it falls; the default is step_size_up
    CyclicMode mode = CyclicMode::triangular;
    double gamma = 1;
    /// Cycles the momentum (or the first beta) inversely, from max_momentum to base_momentum and back. The optimizer
    /// must have one.
    bool cycle_momentum = true;
    double base_momentum = 0.8, max_momentum = 0.9;
};
/// Linear cycles of the rate, stepped after every step (Smith, 2017).
class CyclicLR final : public LRSchedule {
public:
    /// Throws InvalidArgument for invalid rates or steps, and if there is no momentum to cycle.
    CyclicLR(Optimizer& optimizer, const CyclicLROptions& options);

private:
    double next_lr(int group, double lr) const override;
    double first_lr(int group, double lr) const override { return next_lr(group, lr); }
    void advance() override;
    void rewind() override { advance(); }
    /// The present share of `range`, which is that between the lowest and the highest value.
    double rise(double range) const;
    CyclicLROptions options_;
    const char* momentum_ = nullptr;  ///< the setting that is cycled; null if none is
};

/// One schedule after another: schedule i + 1 starts at milestones[i]; milestones are ascending.
class SequentialLR final : public LRSchedule {
public:
    /// The schedules must belong to `optimizer`, and are stepped by this one from now on. Throws InvalidArgument if
    /// they do not, or if there is not exactly one milestone fewer than schedules.
    SequentialLR(Optimizer& optimizer, std::vector<std::shared_ptr<LRSchedule>> schedules,
                 std::vector<std::int64_t> milestones);
    std::map<std::string, double> state() const override;
    void load_state(const std::map<std::string, double>& state) override;

private:
    double next_lr(int group, double lr) const override;
    void advance() override;
    LRSchedule& current() const;
    std::vector<std::shared_ptr<LRSchedule>> schedules_;
    std::vector<std::int64_t> milestones_;
};

/// Several schedules at once: each step steps all of them, in order. Their factors multiply.
class ChainedScheduler final : public LRSchedule {
public:
    /// The schedules are stepped by this one from now on. Throws InvalidArgument for an empty list, and if they
    /// belong to different optimizers.
    explicit ChainedScheduler(std::vector<std::shared_ptr<LRSchedule>> schedules);
    std::map<std::string, double> state() const override;
    void load_state(const std::map<std::string, double>& state) override;

private:
    double next_lr(int, double lr) const override { return lr; }  // set by the schedules just now
    void advance() override;
    void rewind() override;
    std::vector<std::shared_ptr<LRSchedule>> schedules_;
};

/// Options of ReduceLROnPlateau.
struct ReduceLROnPlateauOptions {
    bool maximize = false;  ///< larger metrics are better (torch's mode)
    double factor = 0.1;
    std::int64_t patience = 10;  ///< number of epochs without improvement before a reduction
    double threshold = 1e-4;     ///< minimum improvement
    bool absolute = false;       ///< the threshold is absolute, not relative to the best (torch's threshold_mode)
    std::int64_t cooldown = 0;   ///< epochs after a reduction during which bad epochs are not counted
    double min_lr = 0;
    double eps = 1e-8;  ///< smaller changes of the rate are not applied
};
/// Multiplies the rate by `factor` when a metric has stopped improving.
class ReduceLROnPlateau {
public:
    /// Throws InvalidArgument unless factor < 1. Refers to the optimizer.
    explicit ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {});

    /// Call it after every epoch; `metric` must be the same on all ranks.
    void step(double metric);
    double best() const { return best_; }
    std::map<std::string, double> state() const;
    /// Throws InvalidArgument if a number is missing.
    void load_state(const std::map<std::string, double>& state);

private:
    bool is_better(double metric) const;
    Optimizer& optimizer_;
    ReduceLROnPlateauOptions options_;
    double best_;
    std::int64_t bad_epochs_ = 0, cooldown_left_ = 0;
};

}  // namespace lockstep
