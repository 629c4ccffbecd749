// Resumed runs: they end like uninterrupted ones, or are rejected if what determines the result has changed.
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/lr_schedules.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/run_hooks.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("a run that resumes from its checkpoint ends like an uninterrupted one") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool resumes, ScheduleBy by) {
        SingleTraining training;
        ExponentialLR schedule(training.sgd, 0.8);
        auto runner = training.runner({.epochs = 4});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        runner.add(FollowSchedule(schedule, by));
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        CHECK(runner.state().steps == static_cast<std::uint64_t>(end_at.value_or(20)));
        return std::pair(training.weights(), training.sgd.options().lr);
    };
    for (const ScheduleBy by : {ScheduleBy::step, ScheduleBy::epoch}) {
        const auto whole = train({}, false, by);
        CHECK(whole.second == Approx(0.05 * std::pow(0.8, by == ScheduleBy::step ? 19 : 4)));
        for (const std::int64_t end_at : {1, 4, 5, 6, 13}) {
            INFO(end_at);
            const auto part = train(end_at, false, by);
            CHECK(part.first != whole.first);
            CHECK(train({}, true, by) == whole);
        }
    }
}

TEST_CASE("a resumed run continues with its loss scale, also on other devices") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool resumes) {
        SingleTraining training;
        GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
        auto runner = training.runner({.epochs = 4, .step = {.scaler = &scaler}});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return std::pair(training.weights(), scaler.state());
    };
    const auto whole = train({}, false);
    CHECK(whole.second.at("scale") == 65536);  // 20 steps: doubled six times
    CHECK(whole.second.at("_growth_tracker") == 2);
    for (const std::int64_t end_at : {1, 4, 9}) {
        CHECK(train(end_at, false).second != whole.second);
        CHECK(train({}, true) == whole);
    }
    GradScaler scaler;
    RunState run;
    CHECK_FALSE(restore_scaler(scaler, run));
    store_scaler(scaler, run);
    CHECK(restore_scaler(scaler, run));
    run.fields["grad_scaler scale"] = "much";
    CHECK_THAT(message_of<DataError>([&] { restore_scaler(scaler, run); }),
               test::contains("'grad_scaler scale' is 'much'"));
    run.fields.erase("grad_scaler scale");
    CHECK_THAT(message_of<InvalidArgument>([&] { restore_scaler(scaler, run); }),
               test::contains("the state has no number \"scale\""));
    GradScaler without({.enabled = false});
    store_scaler(without, run);
    CHECK(run.fields.empty());
}

TEST_CASE("a resumed run continues with the rates of its steps") {
    const test::TemporaryDirectory place;
    const auto train = [&](std::optional<std::int64_t> end_at, bool resumes) {
        SingleTraining training;
        AdaScale rates;
        auto runner = training.runner({.epochs = 4, .step = {.rates = &rates}});
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        if (end_at) runner.add(EndAt(*end_at));
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
        return std::tuple(training.weights(), training.sgd.options().lr, rates.state());
    };
    const auto whole = train({}, false);
    CHECK(std::get<1>(whole) > 0.05);
    for (const std::int64_t end_at : {1, 4, 9}) {
        CHECK(train(end_at, false) != whole);
        CHECK(train({}, true) == whole);
    }
}

TEST_CASE("a schedule without state in the checkpoint advances to the run's position") {
    SingleTraining training;
    StepLR schedule(training.sgd, 2, 0.5);
    auto runner = training.runner({.epochs = 2});
    runner.resume_from({.epoch = 1, .steps = 5});
    runner.add(FollowSchedule(schedule, ScheduleBy::step));
    runner.run();
    CHECK(training.sgd.options().lr == Approx(0.05 * std::pow(0.5, 9 / 2)));
    struct Rates : RunHook {
        explicit Rates(std::vector<double>& rates) : rates_(rates) {}
        void before_epoch(Runner& run) override { rates_.push_back(run.optimizer().lr()); }
        std::vector<double>& rates_;
    };
    SingleTraining late;
    ExponentialLR once_an_epoch(late.sgd, 0.5);
    auto going_on = late.runner({.epochs = 4});
    going_on.resume_from({.epoch = 2, .steps = 10});
    going_on.add(FollowSchedule(once_an_epoch));
    std::vector<double> rates;
    going_on.add(Rates(rates));
    going_on.run();
    CHECK(rates == std::vector<double>{0.05 / 4, 0.05 / 8});
    SingleTraining other;
    StepLR by_epoch(other.sgd, 2, 0.5);
    auto damaged = other.runner({.epochs = 2});
    damaged.resume_from({.fields = {{"schedule last_epoch", "many"}}});
    damaged.add(FollowSchedule(by_epoch));
    CHECK_THAT(message_of<DataError>([&] { damaged.run(); }), test::contains("'schedule last_epoch' is 'many'"));
}

TEST_CASE("a run resumes only with the facts that determine its result, except those that may change") {
    const test::TemporaryDirectory place;
    const auto train = [&](RunnerOptions options, std::int64_t batch_size, std::uint64_t seed, bool resumes,
                           std::uint64_t epochs) {
        SingleTraining training;
        Loader<TensorDataset<2>> loader(training.model, runner_rows(),
                                        {.batch_size = batch_size, .shuffle = true, .seed = seed});
        options.epochs = epochs;
        Runner runner(training.model, training.sgd, loader, mse_loss, options);
        if (resumes) runner.resume_from(load_checkpoint(training.model, training.sgd, place / "net").value());
        runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
    };
    const auto refused = [&](const RunnerOptions& options, std::int64_t batch_size = 4, std::uint64_t seed = 2) {
        return message_of<InvalidArgument>([&] { train(options, batch_size, seed, true, 2); });
    };
    const std::map<std::string, std::string> facts{{"scale", "0.5"}, {"flip", "true"}};
    train({.facts = facts}, 4, 2, false, 1);
    CHECK(refused({.facts = {{"scale", "0.25"}, {"flip", "false"}}}) ==
          "Runner: flip is 'false', and the run has 'true'; scale is '0.25', and the run has '0.5'; expected the same, "
          "or the name in may_change");
    CHECK_THAT(refused({.facts = facts}, 2), test::contains("batch-size is '2', and the run has '4'"));
    CHECK_THAT(refused({.facts = facts}, 4, 3), test::contains("seed is '3', and the run has '2'"));
    CHECK_THAT(refused({.facts = facts, .step = {.accumulation_steps = 2}}),
               test::contains("accumulation-steps is '2', and the run has '1'"));
    CHECK_THAT(refused({.facts = facts, .step = {.clip = {ClipGradNorm{.max_norm = 1}}}}),
               test::contains("clip is 'norm 1 of order 2 in group -1', and the run has 'none'"));
    CHECK_THAT(refused({.facts = facts, .may_change = {"sclae"}}), test::contains("may_change names 'sclae'"));
    train({.facts = {{"scale", "0.25"}, {"flip", "true"}}, .may_change = {"scale"}}, 4, 2, true, 2);
    CHECK_THAT(refused({.facts = facts}), test::contains("scale is '0.5', and the run has '0.25'"));
    // A state of an earlier version has no facts.
    SingleTraining old;
    auto runner = old.runner({.epochs = 2, .facts = facts});
    runner.resume_from({.epoch = 1, .steps = 5});
    runner.run();
    CHECK(runner.state().fields.at("fact scale") == "0.5");
}

TEST_CASE("a run resumes only with the loader, engine and step options that determine its result") {
    const test::TemporaryDirectory place;
    struct Setup {
        EngineOptions engine{.shards = 2};
        bool drop_last = false, scales = false, skips = false, shuffles = false;
        AnySampler sampler = {};
        std::vector<std::string> may_change = {};
    };
    const auto train = [&](const Setup& setup, bool resumes) {
        manual_seed(1);
        DataParallel model(DropoutNet{}, Devices({Device::cpu(0)}), setup.engine);
        SGD sgd(model, {.lr = 0.05});
        Loader loader(
            model, runner_rows(),
            {.batch_size = 4, .shuffle = setup.shuffles, .drop_last = setup.drop_last, .sampler = setup.sampler});
        GradScaler scaler({.enabled = setup.scales});
        Runner runner(model, sgd, loader, mse_loss,
                      {.epochs = resumes ? 2U : 1U,
                       .may_change = setup.may_change,
                       .step = {.skip_nonfinite = setup.skips, .scaler = &scaler}});
        if (resumes) runner.resume_from(load_checkpoint(model, sgd, place / "net").value());
        if (!resumes) runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
    };
    train({}, false);
    struct Other {
        Setup setup;
        std::string text;
        std::vector<std::string> names;
    };
    const std::vector<Other> others{
        {{.engine = {.shards = 4}}, "shards is '4', and the run has '2'", {"shards"}},
        {{.engine = {}}, "shards is '1, one per device', and the run has '2'", {"shards"}},
        {{.engine = {.shards = 2, .allow_tf32 = true}}, "allow-tf32 is 'on', and the run has 'off'", {"allow-tf32"}},
        {{.engine = {.shards = 2, .autocast = DType::bf16}}, "amp is 'bf16', and the run has 'off'", {"amp"}},
        {{.engine = {.shards = 2, .convolution = ConvAlgorithm::direct}},
         "convolution is 'direct', and the run has 'automatic'",
         {"convolution"}},
        {{.engine = {.shards = 2, .nan_policy = NanPolicy::ignore}},
         "nan-policy is 'ignore', and the run has 'stop'",
         {"nan-policy"}},
        {{.shuffles = true}, "order is 'shuffled', and the run has 'sequential'", {"order"}},
        {{.sampler = SequentialSampler(20)}, "order is 'sampler', and the run has 'sequential'", {"order"}},
        {{.drop_last = true}, "drop-last is 'on', and the run has 'off'", {"drop-last"}},
        {{.scales = true}, "scaler is 'on', and the run has 'off'", {"scaler"}},
        {{.skips = true}, "skip-nonfinite is 'on', and the run has 'off'", {"skip-nonfinite"}},
    };
    for (auto [setup, text, names] : others) {
        CHECK(message_of<InvalidArgument>([&] { train(setup, true); }) ==
              "Runner: " + text + "; expected the same, or the name in may_change");
        setup.may_change = names;
        train(setup, true);
    }
    // These give the same bits.
    train({.engine = {.shards = 2, .deterministic = true, .reduction = ReductionMode::slice_wise}}, true);
}

TEST_CASE("ranks resume only with the reduction that determines the result") {
    const test::TemporaryDirectory place;
    CHECK(lockstep::test::on_ranks(2, [&](ProcessGroup& group) {
              const auto train = [&](ReductionMode reduction, bool resumes, const RunnerOptions& options) {
                  manual_seed(1);
                  DistributedDataParallel<DropoutNet> model(DropoutNet{}, group, {.shards = 2, .reduction = reduction});
                  SGD sgd(model, {.lr = 0.05});
                  Loader loader(model, runner_rows(), {.batch_size = 4});
                  Runner runner(model, sgd, loader, mse_loss, options);
                  if (resumes) runner.resume_from(load_checkpoint(model, sgd, place / "net").value());
                  runner.add(SaveCheckpoints({.file = place / "net"}));
                  runner.run();
              };
              train(ReductionMode::root, false, {.epochs = 1});
              expect_throws<InvalidArgument>("Runner: reduction is 'fast', and the run has 'tree'; expected the same",
                                             [&] { train(ReductionMode::fast, true, {.epochs = 2}); });
              train(ReductionMode::fast, true, {.epochs = 2, .may_change = {"reduction"}});
              expect_throws<InvalidArgument>("Runner: reduction is 'tree', and the run has 'fast'",
                                             [&] { train(ReductionMode::root, true, {.epochs = 3}); });
          }) == "");
}

TEST_CASE("a run without deterministic results does not continue one that has them") {
    const test::TemporaryDirectory place;
    const auto train = [&](const EngineOptions& engine, bool resumes) {
        DataParallel model(DropoutNet{}, Devices({Device::cpu(0)}), engine);
        SGD sgd(model, {.lr = 0.05});
        Loader loader(model, runner_rows(), {.batch_size = 4});
        Runner runner(model, sgd, loader, mse_loss, {.epochs = resumes ? 2U : 1U});
        if (resumes) runner.resume_from(load_checkpoint(model, sgd, place / "net").value());
        if (!resumes) runner.add(SaveCheckpoints({.file = place / "net"}));
        runner.run();
    };
    train({.deterministic = true}, false);
    CHECK_THAT(message_of<InvalidArgument>([&] { train({}, true); }),
               test::contains("deterministic is 'off', and the run has 'on'; expected the same"));
    train({.shards = 1}, true);  // implies it
    train({}, false);
    CHECK_THAT(message_of<InvalidArgument>([&] { train({.deterministic = true}, true); }),
               test::contains("deterministic is 'on', and the run has 'off'; expected the same"));
    train({.shards = 1}, false);
    train({.shards = 1, .deterministic = true}, true);
}

TEST_CASE("the number of shards may change if it is one per device before and after") {
    const auto changes = [](const std::string& before, const std::string& now) {
        return changed_facts({.fields = {{"fact shards", before}}}, {{"shards", now}}).size();
    };
    CHECK(changes("2, one per device", "4, one per device") == 0);
    CHECK(changes("2, one per device", "2") == 0);
    CHECK(changes("2", "2, one per device") == 0);
    CHECK(changes("2, one per device", "4") == 1);
    CHECK(changes("2", "4, one per device") == 1);
    CHECK(changes("2", "20") == 1);
    CHECK(changed_facts({.fields = {{"fact clip", "a, b"}}}, {{"clip", "a, c"}}).size() == 1);
}

TEST_CASE("text that no checkpoint can store is rejected before the first step") {
    const auto rejected = [](const RunnerOptions& options,
                             const std::function<void(SingleTraining&, Runner&)>& prepare) {
        SingleTraining training;
        auto runner = training.runner(options);
        std::string text = message_of<InvalidArgument>([&] {
            prepare(training, runner);
            runner.run();
        });
        CHECK(runner.state().steps == 0);
        return text;
    };
    const auto nothing = [](SingleTraining&, Runner&) {};
    const std::string shown = "gr\xef\xbf\xbd";  // U+FFFD
    CHECK(rejected({.epochs = 1, .facts = {{"data", "gr\xfc"}}}, nothing) ==
          "Runner: field 'fact data' of the run's state: '" + shown + "' is not UTF-8; expected UTF-8");
    CHECK(rejected({.epochs = 1, .facts = {{"gr\xfc", "1"}}}, nothing) ==
          "Runner: the name of a field of the run's state: 'fact " + shown + "' is not UTF-8; expected UTF-8");
    CHECK_THAT(rejected({.epochs = 1},
                        [](SingleTraining&, Runner& run) {
                            run.resume_from({.metadata = {{"author", "J\xfcrgen"}}});
                        }),
               contains("field 'author' of the run's state"));
    CHECK_THAT(rejected({.epochs = 1},
                        [](SingleTraining&, Runner& run) { run.add(Evaluation("gr\xfc", [] { return 1.0; })); }),
               contains("Evaluation: the name: '" + shown + "'"));
    CHECK_THAT(rejected({.epochs = 1},
                        [](SingleTraining& training, Runner& run) {
                            StepLR schedule(training.sgd, 2);
                            run.add(FollowSchedule(schedule, ScheduleBy::step, "gr\xfc"));
                            run.run();
                        }),
               contains("Runner: the name of a rate setter: 'FollowSchedule '" + shown + "''"));
    // Any valid text is stored.
    const test::TemporaryDirectory place;
    SingleTraining training;
    auto runner = training.runner({.steps = 1, .facts = {{"data", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"}}});
    runner.add(SaveCheckpoints({.file = place / "net"}));
    runner.run();
    CHECK(read_run(place / "net")->fields.at("fact data") == "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
}
