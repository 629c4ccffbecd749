// Adaptive rates over several processes: every rank sets the same rates as one process, bit-identical.
#include <fmt/format.h>

#include <string>

#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;
using namespace lockstep::test;
using test::KinkNet;

namespace {

template <class Model>
test::AdaptiveState train(Model& model, const std::string& rule, const StepOptions& how) {
    SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    const auto rates = test::adaptive_rates(rule);
    test::train_adaptively(model, sgd, how, rates.get(), 0, 8);
    return test::adaptive_state(model, sgd, *rates);
}

}  // namespace

TEST_CASE("ranks measure and set the same values as one process") {
    for (const int ranks : {2, 3, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const std::string rule : {"AdaScale", "YellowFin"})
                      for (const int parts : {1, 2}) {
                          const StepOptions how{.accumulation_steps = parts};
                          DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group,
                                                                 {.shards = 8, .seed = 5, .bucket_bytes = 300});
                          DataParallel<KinkNet> alone(test::seeded_kink_net(), Devices({Device::cpu(0)}),
                                                      {.shards = 8, .seed = 5});
                          const test::AdaptiveState found = train(model, rule, how), expected = train(alone, rule, how);
                          model.engine().verify_replicas();
                          const std::string where = fmt::format("{}, {} microbatches", rule, parts);
                          expect(found.rule == expected.rule, where + ": the rule has different numbers");
                          expect(found == expected, where + ": the ranks are not bit-identical to one process");
                      }
              }) == "");
}

TEST_CASE("different rules, or a communication hook, are an error on all ranks") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Tensor x = test::kink_rows(0);
              const auto own = test::adaptive_rates(group.rank() == 0 ? "AdaScale" : "YellowFin");
              DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group);
              SGD sgd(model, {.momentum = 0.9});
              expect_throws<Error>("compute gradients of different parameters", [&] {
                  model.step(sgd, x, x, test::mean_of_outputs, {.rates = own.get()});
                  model.synchronize();
              });
          }) == "");
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Tensor x = test::kink_rows(0);
              DistributedDataParallel<KinkNet> hooked(test::seeded_kink_net(), group);
              hooked.register_comm_hook(group, power_sgd_hook());
              SGD its(hooked);
              AdaScale rates;
              expect_throws<InvalidArgument>("adaptive rates cannot be combined with a communication hook",
                                             [&] { hooked.step(its, x, x, test::mean_of_outputs, {.rates = &rates}); });
          }) == "");
}
