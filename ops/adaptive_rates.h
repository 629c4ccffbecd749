// Learning rate and momentum from the size and variance of the shards' gradients: rules on the host, which take what
// was measured and say what the optimizer shall be set to (Optimizer::set_lr, set_setting("momentum")). The same
// measures give the same bits.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

/// What a step has to say of its gradient, the mean of those of `shards` shards of as many rows each.
struct GradientMeasures {
    double shard_squares = 0;  ///< mean over the shards of the squared norm of a shard's own mean gradient
    double mean_square = 0;    ///< squared norm of the mean gradient
    int shards = 0;

    /// Estimates without bias, which may be negative: the squared norm of the true gradient, and the variance of one
    /// shard's, summed over all elements. That of the mean is a `shards`-th of it.
    double true_square() const;
    double shard_variance() const;
    /// Throws InvalidArgument for fewer than two shards, from which no variance can be told.
    void check() const;
};

/// Johnson, Agrawal, Gu, Guestrin: "AdaScale SGD: A User-Friendly Algorithm for Distributed Training" (ICML 2020): with
/// S shards a step is worth `gain()` steps of one shard, 1 <= gain <= S; its rate is that many times the one of a
/// single shard's schedule, which has then come so many steps further.
class AdaScale {
public:
    /// Takes a step's measures. Averages decay by 1 - S / 1000 a step, as in the paper. Measures that are not finite
    /// are left out, and count as a step with the gain so far. Throws InvalidArgument as GradientMeasures::check.
    void update(const GradientMeasures& measures);
    /// Of the last step; 1 before the first.
    double gain() const { return gain_; }
    /// How many steps of a single shard the run is worth: what its schedule is asked with.
    double scale_invariant_steps() const { return steps_; }

private:
    double square_ = 0, variance_ = 0, gain_ = 1, steps_ = 0;
    bool began_ = false;
};

/// Zhang, Mitliagkas: "YellowFin and the Art of Momentum Tuning" (2017), with the variance that the shards show in
/// place of one over time: the momentum and rate of SGD that bring a local quadratic model closest to its optimum in a
/// step.
class YellowFin {
public:
    struct Options {
        double smoothing = 0.999;  ///< of all averages, which start without bias
    };
    YellowFin() : YellowFin(Options()) {}
    /// Throws InvalidArgument for a smoothing that is not in [0, 1).
    explicit YellowFin(const Options& options);

    /// Takes a step's measures; those that are not finite are left out. Throws as GradientMeasures::check.
    void update(const GradientMeasures& measures);
    /// Averages over the steps so far; 0 before the first.
    double momentum() const { return momentum_; }
    double lr() const { return lr_; }

    struct Tuned {
        double momentum = 0, lr = 0;
    };
    /// The paper's SingleStep: least momentum * distance^2 + lr^2 * variance under momentum >= ((r - 1) / (r + 1))^2,
    /// r = sqrt(largest / smallest), curvatures both, and lr = (1 - sqrt(momentum))^2 / smallest.
    static Tuned single_step(double variance, double distance, double smallest, double largest);

private:
    static constexpr int window = 20;
    Options options_;
    std::array<double, window> squares_{};
    std::int64_t steps_ = 0;
    // Averages before their bias is taken out.
    double smallest_ = 0, largest_ = 0, variance_ = 0, norm_ = 0, square_ = 0, distance_ = 0;
    double momentum_sum_ = 0, lr_sum_ = 0, momentum_ = 0, lr_ = 0;
};

}  // namespace lockstep
