// Adaptive rates over several processes: every rank sets the rates of one, with its bits.
#include <fmt/format.h>

#include <string>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/power_sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/ddp_ranks.h"
#include "lockstep/tests/parallel/measured_training.h"

using namespace lockstep;
using namespace lockstep::testing;
using test::Kinked;

namespace {

template <class Model>
test::Rated train(Model& model, const std::string& rule, const StepOptions& how) {
    SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    const auto rates = test::adaptive_rates(rule);
    test::train_rated(model, sgd, how, rates.get(), 0, 8);
    return test::rated(model, sgd, *rates);
}

}  // namespace

TEST_CASE("ranks measure and set what one process does") {
    for (const int ranks : {2, 3, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const std::string rule : {"AdaScale", "YellowFin"})
                      for (const int parts : {1, 2}) {
                          const StepOptions how{.accumulation_steps = parts};
                          DistributedDataParallel<Kinked> model(test::seeded_kinked(), group,
                                                                {.shards = 8, .seed = 5, .bucket_bytes = 300});
                          DataParallel<Kinked> alone(test::seeded_kinked(), Devices({Device::cpu(0)}),
                                                     {.shards = 8, .seed = 5});
                          const test::Rated found = train(model, rule, how), expected = train(alone, rule, how);
                          model.engine().verify_replicas();
                          const std::string where = fmt::format("{}, {} microbatches", rule, parts);
                          expect(found.rule == expected.rule, where + ": the rule has other numbers");
                          expect(found == expected, where + ": the ranks have other bits than one process");
                      }
              }) == "");
}

TEST_CASE("ranks with other rules are told so, and so is who has a communication hook") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Tensor x = test::kinked_rows(0);
              const auto own = test::adaptive_rates(group.rank() == 0 ? "AdaScale" : "YellowFin");
              DistributedDataParallel<Kinked> model(test::seeded_kinked(), group);
              SGD sgd(model, {.momentum = 0.9});
              expect_throws<Error>("does not compute gradients of the same parameters", [&] {
                  model.step(sgd, x, x, test::mean_of_outputs, {.rates = own.get()});
                  model.synchronize();
              });
          }) == "");
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Tensor x = test::kinked_rows(0);
              DistributedDataParallel<Kinked> hooked(test::seeded_kinked(), group);
              hooked.register_comm_hook(group, power_sgd_hook());
              SGD its(hooked);
              AdaScale rates;
              expect_throws<InvalidArgument>("adaptive rates cannot be combined with a communication hook",
                                             [&] { hooked.step(its, x, x, test::mean_of_outputs, {.rates = &rates}); });
          }) == "");
}
