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

/// No gradient is without any noise or curvature.
constexpr double least = 1e-30;

}  // namespace

double GradientMeasures::shard_variance() const { return (shard_squares - mean_square) * shards / (shards - 1); }

double GradientMeasures::true_square() const { return mean_square - shard_variance() / shards; }

void GradientMeasures::check() const {
    if (shards < 2)
        throw InvalidArgument(fmt::format(
            "adaptive rates: {} shards do not show how much gradients vary; train with two or more", shards));
}

void AdaScale::update(const GradientMeasures& measures) {
    measures.check();
    if (is_finite(measures)) {
        const double decay = began_ ? std::max(1 - measures.shards / 1000.0, 0.0) : 0;
        square_ = decay * square_ + (1 - decay) * measures.true_square();
        variance_ = decay * variance_ + (1 - decay) * measures.shard_variance();
        began_ = true;
        const double variance = std::max(variance_, least), square = std::max(square_, 0.0);
        gain_ = (variance + square) / (variance / measures.shards + square);
    }
    steps_ += gain_;
}

YellowFin::YellowFin(const Options& options) : options_(options) {
    if (!(options.smoothing >= 0 && options.smoothing < 1))
        throw InvalidArgument(fmt::format("YellowFin: smoothing {} must be in [0, 1)", options.smoothing));
}

YellowFin::Tuned YellowFin::single_step(double variance, double distance, double smallest, double largest) {
    // With x = sqrt(momentum): least x^2 D^2 + (1 - x)^4 C / h^2, where y = x - 1 has y^3 + p y + p = 0.
    const double p = distance * distance * smallest * smallest / (2 * std::max(variance, least));
    double x = 0;
    if (p < 1e12) {  // beyond, momentum only costs
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
    const double square = std::max(measures.mean_square, least);
    squares_[static_cast<std::size_t>(steps_ % window)] = square;
    ++steps_;
    const auto end = squares_.begin() + std::min<std::int64_t>(steps_, window);
    const double b = options_.smoothing;
    const double unbiased = 1 / (1 - std::pow(b, static_cast<double>(steps_)));
    const auto average = [&](double& all, double next) {
        all = b * all + (1 - b) * next;
        return all * unbiased;
    };
    const double smallest = average(smallest_, *std::min_element(squares_.begin(), end));
    const double largest = average(largest_, *std::max_element(squares_.begin(), end));
    const double variance = std::max(average(variance_, measures.shard_variance() / measures.shards), 0.0);
    const double norm = average(norm_, std::sqrt(square)), mean = average(square_, square);
    const double distance = average(distance_, norm / mean);
    const Tuned tuned = single_step(variance, distance, smallest, largest);
    momentum_ = average(momentum_sum_, tuned.momentum);
    lr_ = average(lr_sum_, tuned.lr);
}

}  // namespace lockstep
