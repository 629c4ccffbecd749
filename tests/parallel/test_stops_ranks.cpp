// Training of several processes that ends before its end: whoever wants it, all of them stop at one step.
#include <csignal>
#include <random>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/training_loop.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/ddp_ranks.h"
#include "lockstep/tests/parallel/stopped_training.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace stopped_training;
using lockstep::test::number_from;

TEST_CASE("whichever rank is stopped, whenever, all end before the same step, and soon") {
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
                  DistributedDataParallel model(Net{}, group);
                  SGD sgd(model, {.lr = 0.01});
                  Loader loader(model, rows(400), {.batch_size = 8});
                  const StopSignals stop;
                  std::int64_t made = 0;
                  Trainer trainer(model, sgd, loader, mse_loss, [&](const StepReport& step) {
                      made = step.step + 1;
                      const bool now = group.rank() == first && step.step >= at;
                      if (now && !callback) ::raise(SIGINT);
                      // Another rank may want it as well, at another step.
                      if (group.rank() == (first + 1) % size && step.step == second_at) ::raise(SIGTERM);
                      return !(now && callback);
                  });
                  trainer.stop_on(stop);
                  const std::int64_t next = trainer.run(0);
                  const std::int64_t wanted = std::min(at, second_at);
                  expect(trainer.stopped().has_value(), "nobody stopped");
                  expect(next == made, "steps were lost");
                  expect(next > wanted && next <= wanted + 9, fmt::format("stopped after {} steps, {}", next, wanted));
                  const auto same = [&](std::int64_t value, const char* what) {
                      const std::int64_t sum = model.engine().sum_over_ranks(value);
                      expect(sum == value * group.size(), fmt::format("{} {} is not that of all", what, value));
                  };
                  same(next, "the number of steps");
                  same(*trainer.stopped(), "the reason");
                  model.engine().verify_replicas();
              }) == "");
    }
}

TEST_CASE("ranks that read losses at different times, or go on after a stop, agree all the same") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              DistributedDataParallel model(Net{}, group);
              SGD sgd(model, {.lr = 0.01});
              const Tensor x = Tensor::full({6, 3}, 1), y = Tensor::zeros({6, 2});
              std::mt19937 random(static_cast<unsigned>(group.rank()));
              for (int round = 0; round < 12; ++round) {
                  const int wanted = 3 + round % 5;
                  int steps = 0;
                  std::optional<int> why;
                  while (!(why = model.engine().stop_before_step(group.rank() == round % 3 && steps >= wanted
                                                                     ? std::optional<int>(round)
                                                                     : std::nullopt))) {
                      const StepLoss loss = model.step(sgd, x, y, mse_loss);
                      if (random() % 2 == 0) static_cast<void>(loss.item());  // knows more than the others, sooner
                      if (++steps > 100) throw Error("nobody stops");
                  }
                  const auto all = model.engine().sum_over_ranks(steps);
                  expect(all == 3 * steps, fmt::format("round {}: {} steps here, {} in all", round, steps, all));
                  expect(why == round, "another reason");
                  expect(steps <= wanted + 4, fmt::format("{} steps, {} wanted", steps, wanted));
              }
              expect(!model.engine().agree_on_stop(std::nullopt), "a stop that nobody wants");
              expect(model.engine().agree_on_stop(group.rank() == 1 ? std::optional<int>(15) : std::nullopt) == 15,
                     "a stop between steps");
              expect(!model.engine().agree_on_stop(std::nullopt), "a stop that was over");
          }) == "");
}
