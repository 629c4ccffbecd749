// AdaScale's gain and YellowFin's momentum in cases with known results: quadratics with noise of a given variance.
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

namespace {

constexpr int elements = 50;

/// Measurements for f(x) = |x|^2 / 2 at a point where each of `elements` has gradient `slope`, with noise of deviation
/// `noise` in each shard and element.
GradientMeasures measured(std::mt19937& random, int shards, double slope, double noise) {
    std::normal_distribution<double> normal;
    std::vector<double> mean(elements, 0);
    GradientMeasures measures{0, 0, shards};
    for (int shard = 0; shard < shards; ++shard)
        for (double& all : mean) {
            const double g = slope + noise * normal(random);
            measures.shard_squares += g * g / shards;
            all += g / shards;
        }
    for (const double g : mean) measures.mean_square += g * g;
    return measures;
}

std::string refusal(AdaptiveRates& rates, const std::map<std::string, double>& state) {
    try {
        rates.load_state(state);
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "nothing was refused";
}

}  // namespace

TEST_CASE("AdaScale estimates the gain of a noisy quadratic: 1 without noise, up to the number of shards") {
    for (const int shards : {2, 8})
        for (const double noise : {0.0, 0.5, 2.0, 50.0}) {
            std::mt19937 random(1);
            AdaScale rule;
            CHECK(rule.gain() == 1);
            double sum = 0;
            for (int step = 0; step < 4000; ++step) {
                rule.update(measured(random, shards, 1, noise));
                sum += rule.gain();
            }
            const double variance = noise * noise, known = (variance + 1) / (variance / shards + 1);
            INFO(shards << " shards, noise " << noise);
            CHECK(rule.gain() == Approx(known).epsilon(0.1));
            CHECK(rule.scale_invariant_steps() == Approx(sum));
        }
}

TEST_CASE("YellowFin's single step is the minimum found by a scan") {
    for (const double variance : {1e-4, 0.1, 3.0})
        for (const double distance : {0.1, 1.0, 20.0})
            for (const double largest : {0.5, 5.0, 500.0}) {
                const double smallest = 0.5, condition = std::sqrt(largest / smallest);
                const auto cost = [&](double x) {
                    const double lr = (1 - x) * (1 - x) / smallest;
                    return x * x * distance * distance + lr * lr * variance;
                };
                double best = (condition - 1) / (condition + 1);
                for (double x = best; x < 1; x += 1e-5)
                    if (cost(x) < cost(best)) best = x;
                const auto tuned = YellowFin::single_step(variance, distance, smallest, largest);
                CHECK(std::sqrt(tuned.momentum) == Approx(best).margin(2e-5));
                CHECK(tuned.lr == Approx((1 - std::sqrt(tuned.momentum)) * (1 - std::sqrt(tuned.momentum)) / smallest));
            }
}

TEST_CASE("YellowFin converges to the expected values if slope and noise are constant") {
    // Without noise all squares are 50: curvatures are equal, the distance is 1 / norm, and the momentum is 0.
    std::mt19937 random(2);
    YellowFin still({.smoothing = 0.9});
    for (int step = 0; step < 100; ++step) still.update(measured(random, 4, 1, 0));
    CHECK(still.momentum() == Approx(0).margin(1e-6));
    CHECK(still.lr() == Approx(1.0 / elements).epsilon(1e-6));
    // With noise there is momentum, and the rate is smaller.
    YellowFin shaken({.smoothing = 0.9});
    for (int step = 0; step < 300; ++step) shaken.update(measured(random, 4, 1, 20));
    CHECK(shaken.momentum() > 0.05);
    CHECK(shaken.lr() < still.lr());
}

TEST_CASE("non-finite measurements are ignored, and a single shard is rejected") {
    AdaScale scale;
    YellowFin fin;
    std::mt19937 random(3);
    const GradientMeasures good = measured(random, 4, 1, 1), bad{INFINITY, NAN, 4};
    scale.update(good);
    fin.update(good);
    const double gain = scale.gain(), lr = fin.lr();
    scale.update(bad);
    fin.update(bad);
    CHECK(scale.gain() == gain);
    CHECK(scale.scale_invariant_steps() == 2 * gain);
    CHECK(fin.lr() == lr);
    CHECK_THROWS_WITH(scale.update({1, 1, 1}),
                      "adaptive rates: the variance of gradients is unknown with 1 shards; expected at least two");
    CHECK_THROWS_AS(fin.update({1, 1, 1}), InvalidArgument);
    CHECK_THROWS_AS(YellowFin({.smoothing = 1}), InvalidArgument);
}

TEST_CASE("an impossible state is rejected, and nothing changes") {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    AdaScale scale;
    YellowFin fin;
    for (AdaptiveRates* rates : {static_cast<AdaptiveRates*>(&scale), static_cast<AdaptiveRates*>(&fin)}) {
        for (int step = 0; step < 30; ++step) rates->update({3.0 + step % 3, 1.0, 4});
        const auto good = rates->state();
        rates->load_state(good);
        CHECK(rates->state() == good);
        for (const auto& [name, value] : good) {
            std::vector<double> bad{nan, infinity, -infinity};
            if (name == "steps" || name == "groups" || name == "under_way") bad.insert(bad.end(), {-1.0, 0.5, 1e300});
            for (const double other : bad) {
                CAPTURE(name, other);
                auto changed = good;
                changed[name] = other;
                CHECK(refusal(*rates, changed).find(name) != std::string::npos);
                CHECK(rates->state() == good);
            }
        }
        auto changed = good;
        changed["under_way"] = 1;
        for (const std::string name : {"skipped", "shard_squares", "mean_square", "shards"})
            changed["under_way.0." + name] = name == "shards" ? -3 : 0;
        CHECK(refusal(*rates, changed).find("under_way.0.shards -3 in the state") != std::string::npos);
        CHECK(rates->state() == good);
        rates->update({4.0, 1.0, 4});
    }
}
