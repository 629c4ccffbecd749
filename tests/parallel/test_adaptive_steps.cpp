// Adaptive rates in steps: measurements, when they count, and bit-identical results on any devices. The rules
// themselves: test_adaptive_rates; over several processes: test_adaptive_ranks.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/run_state.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;
using lockstep::test::message_of;
using test::KinkNet;

namespace {

/// A rule that changes nothing.
struct Notes final : AdaptiveRates {
    const char* name() const override { return "Notes"; }
    void update(const GradientMeasures& measures) override { taken.push_back(measures); }
    void set(Optimizer&) override {}
    std::map<std::string, double> numbers() const override { return {{"taken", static_cast<double>(taken.size())}}; }
    void set_numbers(const std::map<std::string, double>& numbers) override {
        taken.resize(static_cast<std::size_t>(number(numbers, "taken")));
    }
    std::vector<GradientMeasures> taken;
};

constexpr std::int64_t inputs = 70, outputs = 3;  // more weights than are summed at once

/// (N, 70) -> (N, 3); its bias is not trained.
struct Line {
    Linear line{inputs, outputs};
    LOCKSTEP_MEMBERS(line)
    Line() { line.bias->tensor().requires_grad_(false); }
    Tensor forward(const Tensor& x) { return line(x); }
};

Line seeded_line() {
    manual_seed(4);
    return {};
}

Loss mean_square(const Tensor& y, const Tensor&) { return mean_loss(square(y)); }

/// The gradient of the mean square of rows [first, last), in double.
std::vector<double> gradient(const std::vector<float>& weight, const std::vector<float>& bias,
                             const std::vector<float>& x, std::int64_t first, std::int64_t last) {
    std::vector<double> sum(weight.size(), 0);
    for (std::int64_t row = first; row < last; ++row)
        for (std::int64_t o = 0; o < outputs; ++o) {
            const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
            double y = bias[at(o)];
            for (std::int64_t i = 0; i < inputs; ++i)
                y += static_cast<double>(weight[at(o * inputs + i)]) * x[at(row * inputs + i)];
            for (std::int64_t i = 0; i < inputs; ++i) sum[at(o * inputs + i)] += 2 * y * x[at(row * inputs + i)];
        }
    for (double& each : sum) each /= static_cast<double>((last - first) * outputs);
    return sum;
}

double squared_norm(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return sum;
}

void check_measures(std::int64_t rows, const std::vector<std::int64_t>& piece_begins, StepOptions how, bool scaled) {
    INFO(rows << " rows, " << how.accumulation_steps << " microbatches" << (scaled ? ", scaled" : ""));
    DataParallel<Line> model(seeded_line(), test::cpu_devices(2), {.shards = 4});
    const auto weight = model->line.weight.tensor().to_vector<float>(),
               bias = model->line.bias->tensor().to_vector<float>();
    manual_seed(8);
    const Tensor x = Tensor::randn({rows, inputs});
    const auto values = x.to_vector<float>();
    SGD sgd(model, {.lr = 0});
    Notes notes;
    how.rates = &notes;
    GradScaler scaler;
    if (scaled) how.scaler = &scaler;
    for (int i = 0; i < 3; ++i) model.step(sgd, x, x, mean_square, how);
    GradientMeasures expected{0, squared_norm(gradient(weight, bias, values, 0, rows)),
                              static_cast<int>(piece_begins.size()) - 1};
    for (std::size_t piece = 0; piece + 1 < piece_begins.size(); ++piece) {
        const std::int64_t first = piece_begins[piece], last = piece_begins[piece + 1];
        expected.shard_squares += static_cast<double>(last - first) / static_cast<double>(rows) *
                                  squared_norm(gradient(weight, bias, values, first, last));
    }
    REQUIRE(notes.taken.size() == 1);
    CHECK(notes.taken[0].shards == expected.shards);
    CHECK(notes.taken[0].shard_squares == Approx(expected.shard_squares).epsilon(1e-5));
    CHECK(notes.taken[0].mean_square == Approx(expected.mean_square).epsilon(1e-5));
}

}  // namespace

TEST_CASE("a step's measurements agree with a double loop over shards and microbatches, unscaled and unclipped") {
    const std::vector<GradientClip> clip{ClipGradNorm{.max_norm = 1e-3}};
    for (const bool scaled : {false, true}) {
        check_measures(12, {0, 3, 6, 9, 12}, {}, scaled);
        check_measures(12, {0, 3, 6, 9, 12}, {.clip = clip}, scaled);
        check_measures(10, {0, 3, 6, 9, 10}, {}, scaled);
        check_measures(6, {0, 2, 4, 6}, {}, scaled);
        check_measures(16, {0, 2, 4, 6, 8, 10, 12, 14, 16}, {.accumulation_steps = 2, .clip = clip}, scaled);
        check_measures(14, {0, 2, 4, 6, 8, 10, 12, 14}, {.accumulation_steps = 2}, scaled);
    }
}

TEST_CASE("a step's rate depends on the step before the last, whatever the host waits for") {
    for (const bool waits : {false, true}) {
        DataParallel<KinkNet> model(test::seeded_kink_net(), test::cpu_devices(2), {.shards = 4});
        SGD sgd(model, {.lr = 0.1});
        Notes notes;
        for (int i = 0; i < 6; ++i) {
            test::train_adaptively(model, sgd, {}, &notes, i, i + 1);
            CHECK(notes.taken.size() == static_cast<std::size_t>(std::max(0, i - 1)));
            if (waits) model.synchronize();
        }
    }
}

namespace {

test::AdaptiveState train(const std::string& rule, int devices, ReductionMode reduction, const StepOptions& how) {
    DataParallel<KinkNet> model(test::seeded_kink_net(), test::cpu_devices(devices),
                                {.shards = 8, .reduction = reduction, .seed = 5, .bucket_bytes = 300});
    SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    sgd.add_group({"second"}, {.lr = 0.02, .momentum = 0.9});
    const auto rates = test::adaptive_rates(rule);
    test::train_adaptively(model, sgd, how, rates.get(), 0, 12);
    return test::adaptive_state(model, sgd, *rates);
}

}  // namespace

TEST_CASE("rates and weights have the same bits on any number of devices") {
    for (const std::string rule : {"AdaScale", "YellowFin"})
        for (const int parts : {1, 2}) {
            const StepOptions how{.accumulation_steps = parts};
            const test::AdaptiveState expected = train(rule, 1, ReductionMode::root, how);
            CHECK(expected.lr != 0.05);
            CHECK((expected.momentum != 0.9) == (rule == "YellowFin"));
            for (const int devices : {2, 3, 8})
                for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
                    INFO(rule << ", " << devices << " devices, " << parts << " microbatches");
                    const test::AdaptiveState found = train(rule, devices, reduction, how);
                    CHECK(found.rule == expected.rule);
                    CHECK((found == expected));
                }
        }
}

TEST_CASE("AdaScale multiplies the groups' initial rates by its gain and its schedule") {
    DataParallel<KinkNet> model(test::seeded_kink_net(), test::cpu_devices(2), {.shards = 4});
    SGD sgd(model, {.lr = 0.05});
    sgd.add_group({"second"}, {.lr = 0.02});
    AdaScale rates({.schedule = [](double steps) { return steps < 3 ? 1.0 : 0.5; }});
    test::train_adaptively(model, sgd, {}, &rates, 0, 2);
    CHECK(sgd.lr(0) == 0.05);
    double steps = 0;
    for (int i = 2; i < 9; ++i) {
        test::train_adaptively(model, sgd, {}, &rates, i, i + 1);
        CHECK(rates.gain() > 1);
        CHECK(rates.gain() <= 4);
        steps += rates.gain();
        CHECK(rates.scale_invariant_steps() == steps);
        CHECK(sgd.lr(0) == 0.05 * (rates.gain() * (steps < 3 ? 1.0 : 0.5)));
        CHECK(sgd.lr(1) == 0.02 * (rates.gain() * (steps < 3 ? 1.0 : 0.5)));
    }
    CHECK(steps > 7);
}

namespace {

/// f(w) = |w|^2 / 2 with a noisy gradient: for one row it is (w - row) / elements.
constexpr std::int64_t elements = 40;
struct Quadratic {
    Parameter weight{Tensor::full({elements}, 1)};
    LOCKSTEP_MEMBERS(weight)
    Tensor forward(const Tensor& x) { return square(weight.tensor() - x) * 0.5; }
};

/// `count` rows with noise of that deviation.
Tensor noisy_rows(int step, std::int64_t count, double noise) {
    manual_seed(static_cast<std::uint64_t>(1000 + step));
    return Tensor::randn({count, elements}) * noise;
}

Loss mean_of(const Tensor& values, const Tensor&) { return mean_loss(values); }

double distance(const Tensor& weight) {
    double sum = 0;
    for (const float value : weight.to_vector<float>()) sum += static_cast<double>(value) * value;
    return std::sqrt(sum);
}

}  // namespace

TEST_CASE("AdaScale estimates the gain of a noisy quadratic in training steps") {
    constexpr int shards = 4, rows = 2;  // rows of each shard
    for (const double noise : {0.0, 1.0, 3.0, 100.0}) {
        INFO("noise " << noise);
        DataParallel<Quadratic> model(Quadratic{}, test::cpu_devices(2), {.shards = shards});
        SGD sgd(model, {.lr = 0});  // so that the weights stay known
        AdaScale rates;
        for (int i = 0; i < 600; ++i) {
            const Tensor x = noisy_rows(i, shards * rows, noise);
            model.step(sgd, x, x, mean_of, {.rates = &rates});
        }
        // For every element: slope 1, and a shard's variance noise^2 / rows.
        const double variance = noise * noise / rows, known = (variance + 1) / (variance / shards + 1);
        CHECK(rates.gain() == Approx(known).epsilon(0.1));
    }
}

TEST_CASE("YellowFin converges to the optimum of a noisy quadratic, and AdaScale needs fewer steps") {
    constexpr double noise = 0.5, start = 6.3;  // sqrt(elements)
    {
        DataParallel<Quadratic> model(Quadratic{}, test::cpu_devices(2), {.shards = 4});
        SGD sgd(model, {.lr = 0.1, .momentum = 0.5});
        YellowFin rates({.smoothing = 0.9});
        CHECK(distance(model->weight.tensor()) == Approx(start).epsilon(0.01));
        for (int i = 0; i < 300; ++i) {
            const Tensor x = noisy_rows(i, 8, noise);
            model.step(sgd, x, x, mean_of, {.rates = &rates});
        }
        model.synchronize();
        CHECK(distance(model->weight.tensor()) < start / 4);
        CHECK(rates.momentum() > 0);
        // Stable: the curvature is 1 / elements.
        CHECK(rates.lr() / elements < 2 * (1 + rates.momentum()));
    }
    const auto steps_to = [](double goal, bool scaled) {
        DataParallel<Quadratic> model(Quadratic{}, test::cpu_devices(2), {.shards = 4});
        SGD sgd(model, {.lr = 0.4});
        AdaScale rates;
        int step = 0;
        for (; step < 3000 && distance(model->weight.tensor()) > goal; ++step) {
            const Tensor x = noisy_rows(step, 4, 2);  // noise: sqrt(elements) * 2
            model.step(sgd, x, x, mean_of, {.rates = scaled ? &rates : nullptr});
            model.synchronize();
        }
        return step;
    };
    CHECK(steps_to(2, true) < 0.6 * steps_to(2, false));
}

TEST_CASE("a skipped step measures nothing, and a refused one leaves the rates unchanged") {
    for (const std::string rule : {"AdaScale", "YellowFin"}) {
        INFO(rule);
        const auto train = [&](bool spoiled, NanPolicy policy, bool skips) {
            DataParallel<KinkNet> model(test::seeded_kink_net(), test::cpu_devices(2),
                                        {.shards = 4, .nan_policy = policy, .seed = 5});
            SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
            const auto rates = test::adaptive_rates(rule);
            const StepOptions how{.skip_nonfinite = skips, .rates = rates.get()};
            int refused = 0;
            const auto step = [&](const Tensor& x) {
                try {
                    model.step(sgd, x, x, test::mean_of_outputs, how);
                } catch (const StepError&) {
                    ++refused;
                }
            };
            for (int i = 0; i < 8; ++i) {
                if (spoiled && i == 4) {
                    Tensor bad = test::kink_rows(50, skips);
                    if (!skips) bad.select(0, 3).fill_(NAN);  // its loss is NaN
                    step(bad);
                    if (!skips) step(test::kink_rows(51));  // queued after it
                    if (!skips) CHECK_THROWS_AS(model.synchronize(), StepError);
                }
                step(test::kink_rows(i));
            }
            model.synchronize();
            CHECK(refused == 0);
            return test::adaptive_state(model, sgd, *rates);
        };
        const test::AdaptiveState straight = train(false, NanPolicy::stop, false);
        const test::AdaptiveState after_refusal = train(true, NanPolicy::stop, false);
        CHECK(after_refusal.rule == straight.rule);
        CHECK((after_refusal == straight));
        // A skipped step occupies a place among those whose measurements are waited for, so the following run differs.
        const test::AdaptiveState skipping = train(false, NanPolicy::stop, true),
                                  skipped = train(true, NanPolicy::stop, true);
        CHECK((skipping == straight));
        CHECK(skipped.steps == straight.steps);
        if (rule == "YellowFin") CHECK(skipped.rule.at("steps") == straight.rule.at("steps"));
    }
}

TEST_CASE("a resumed run continues with the rates of its steps, also on other devices") {
    const test::TemporaryDirectory place;
    for (const std::string rule : {"AdaScale", "YellowFin"})
        for (const int end : {1, 2, 7}) {
            INFO(rule << " after " << end << " steps");
            const auto train = [&](int devices, int first, int last) {
                DataParallel<KinkNet> model(test::seeded_kink_net(), test::cpu_devices(devices),
                                            {.shards = 8, .seed = 5});
                SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
                const auto rates = test::adaptive_rates(rule);
                if (first > 0) CHECK(restore_rates(*rates, load_checkpoint(model, sgd, place / "net").value()));
                test::train_adaptively(model, sgd, {}, rates.get(), first, last);
                RunState state;
                state.steps = static_cast<std::uint64_t>(last);
                model.synchronize();
                store_rates(*rates, state);
                save_checkpoint(model, sgd, state, place / "net");
                return std::pair(rates->state(), model->first.weight->to_vector<float>());
            };
            const auto whole = train(1, 0, 12);
            CHECK(train(3, 0, end) != whole);
            CHECK(train(2, end, 12) == whole);
        }
}

TEST_CASE("unsupported combinations with adaptive rates are rejected") {
    DataParallel<KinkNet> model(test::seeded_kink_net(), test::cpu_devices(1)),
        other(test::seeded_kink_net(), test::cpu_devices(2));
    SGD sgd(model), its(other);
    AdaScale scale;
    YellowFin fin;
    const Tensor x = test::kink_rows(0);
    CHECK_THROWS_WITH(model.step(sgd, x, x, test::mean_of_outputs, {.rates = &scale}),
                      "adaptive rates: the variance of gradients is unknown with 1 shards; expected at least two");
    model.step(sgd, x, x, test::mean_of_outputs, {.accumulation_steps = 2, .rates = &scale});
    CHECK_THROWS_WITH(other.step(its, x, x, test::mean_of_outputs, {.rates = &scale}),
                      "step: this AdaScale belongs to another optimizer; expected one rule per optimizer");
    Adam adam(other);
    CHECK_THAT(message_of<InvalidArgument>([&] { other.step(adam, x, x, test::mean_of_outputs, {.rates = &fin}); }),
               test::contains("unknown setting momentum"));
    Notes notes;
    other.step(its, x, x, test::mean_of_outputs, {.rates = &notes});
    CHECK_THROWS_WITH(notes.state(), "Notes: a step is in flight; expected synchronize() of the model before state()");
    other.synchronize();
    CHECK(notes.state().at("under_way") == 1);
    RunState run;
    CHECK_FALSE(restore_rates(scale, run));
    run.fields["AdaScale gain"] = "much";
    CHECK_THROWS_AS(restore_rates(scale, run), DataError);
    run.fields["AdaScale gain"] = "1";
    CHECK_THROWS_WITH(restore_rates(scale, run),
                      "AdaScale: the state has no number \"under_way\"; expected the state of such a rule");
}
