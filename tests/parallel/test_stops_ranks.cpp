// Training of several processes that is stopped early: whichever rank requests it, all stop at the same step.
#include <csignal>
#include <random>
#include <stop_token>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/checkpoints.h"
#include "lockstep/tests/fixtures/datasets.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("if any rank is stopped at any time, all end soon, before the same step") {
    const unsigned seed = static_cast<unsigned>(number_from("LOCKSTEP_STOP_SEED", 1));
    std::mt19937 random(seed);
    const int trials = number_from("LOCKSTEP_STOP_TRIALS", 8);
    for (int trial = 0; trial < trials; ++trial) {
        const int size = 2 + static_cast<int>(random() % 3),
                  first = static_cast<int>(random() % static_cast<unsigned>(size));
        const int at = static_cast<int>(random() % 20), second_at = static_cast<int>(random() % 25);
        const bool callback = random() % 2 == 0;
        CAPTURE(trial, size, first, at, second_at, callback);
        CHECK(on_ranks(size, [&](ProcessGroup& group) {
                  DistributedDataParallel model(HookedInput{}, group);
                  SGD sgd(model, {.lr = 0.01});
                  Loader loader(model, fixed_rows(400), {.batch_size = 8});
                  const StopSignals stop;
                  std::int64_t made = 0;
                  Runner runner(model, sgd, loader, mse_loss, {.epochs = 1});
                  runner.add(AfterStep([&](Runner& run, const StepReport& step) {
                      made = step.step + 1;
                      const bool now = group.rank() == first && step.step >= at;
                      if (now && !callback) ::raise(SIGINT);
                      // Another rank may request it as well, at another step.
                      if (group.rank() == (first + 1) % size && step.step == second_at) ::raise(SIGTERM);
                      if (now && callback) run.end();
                  }));
                  runner.stop_on(stop);
                  runner.run();
                  const std::int64_t next = runner.state().batch, wanted = std::min(at, second_at);
                  expect(runner.stopped().has_value(), "the run was not stopped");
                  expect(next == made, "steps were lost");
                  expect(next > wanted && next <= wanted + 9, fmt::format("stopped after {} steps, {}", next, wanted));
                  const auto same = [&](std::int64_t value, const char* what) {
                      const std::int64_t sum = model.engine().sum_over_ranks(value);
                      expect(sum == value * group.size(), fmt::format("{} {} differs between ranks", what, value));
                  };
                  same(next, "the number of steps");
                  same(*runner.stopped(), "the reason");
                  model.engine().verify_replicas();
              }) == "");
    }
}

TEST_CASE("a stop token of any rank ends the runs and evaluations of all ranks") {
    for (const int size : {2, 3})
        for (int first = 0; first < size; ++first)
            CHECK(on_ranks(size, [&](ProcessGroup& group) {
                      DistributedDataParallel model(HookedInput{}, group);
                      SGD sgd(model, {.lr = 0.01});
                      Loader loader(model, fixed_rows(400), {.batch_size = 8});
                      std::stop_source source;
                      const auto request = [&] { std::thread([&] { source.request_stop(); }).join(); };
                      Runner runner(model, sgd, loader, mse_loss, {.epochs = 1});
                      runner.add(AfterStep([&](Runner&, const StepReport& step) {
                          if (group.rank() == first && step.step == 5) request();
                      }));
                      runner.stop_on(source.get_token());
                      runner.run();
                      expect(runner.stopped() == stopped_by_token, "another reason");
                      const std::int64_t made = runner.state().batch;
                      expect(made >= 6 && made <= 14, fmt::format("{} steps", made));
                      expect(model.engine().sum_over_ranks(made) == made * size, "the number of steps differs");

                      std::stop_source evaluation;
                      Loader classes(model,
                                     TensorDataset(Tensor::zeros({8 * size, 3}), Tensor::zeros({8 * size}, DType::i64)),
                                     {.batch_size = 2 * size});
                      expect(accuracy(model, classes, evaluation.get_token()) == accuracy(model, classes),
                             "another accuracy");
                      if (group.rank() == first) evaluation.request_stop();
                      expect(!accuracy(model, classes, evaluation.get_token()), "the evaluation was not interrupted");
                  }) == "");
}

TEST_CASE("ranks that read losses at different times, or continue after a stop, agree") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              DistributedDataParallel model(HookedInput{}, group);
              SGD sgd(model, {.lr = 0.01});
              const Tensor x = Tensor::full({6, 3}, 1), y = Tensor::zeros({6, 2});
              std::mt19937 random(static_cast<unsigned>(group.rank()));
              for (int round = 0; round < 12; ++round) {
                  const int wanted = 3 + round % 5;
                  int steps = 0;
                  std::optional<int> why;
                  while (!(why = model.engine().poll_stop(group.rank() == round % 3 && steps >= wanted
                                                              ? std::optional<int>(round)
                                                              : std::nullopt))) {
                      const StepLoss loss = model.step(sgd, x, y, mse_loss);
                      if (random() % 2 == 0) static_cast<void>(loss.item());  // reads earlier than other ranks
                      if (++steps > 100) throw Error("no rank stops");
                  }
                  const auto all = model.engine().sum_over_ranks(steps);
                  expect(all == 3 * steps, fmt::format("round {}: {} steps here, {} in all", round, steps, all));
                  expect(why == round, "another reason");
                  expect(steps <= wanted + 4, fmt::format("{} steps, {} wanted", steps, wanted));
              }
              expect(!model.engine().sync_stop(std::nullopt), "a stop without a request");
              expect(model.engine().sync_stop(group.rank() == 1 ? std::optional<int>(15) : std::nullopt) == 15,
                     "a stop between steps");
              expect(!model.engine().sync_stop(std::nullopt), "a stop that had ended");
          }) == "");
}
