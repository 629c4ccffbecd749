// Benchmark mode in several processes: all use the choices of the first one.
#include <map>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/comm/group/shared_choices.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Net {
    Conv2d first{32, 32, 3, {.padding = 1}}, second{32, 64, 3};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

Net seeded() {
    manual_seed(2);
    return {};
}

std::string as_text(const std::map<std::string, std::string>& choices) {
    std::string text;
    for (const auto& [question, name] : choices) text += question + ": " + name + "\n";
    return text;
}

}  // namespace

TEST_CASE("all ranks use the same choices, and replicas stay identical") {
    for (const int size : {2, 3})
        CHECK(on_ranks(size, [](ProcessGroup& group) {
                  DistributedDataParallel model(seeded(), group,
                                                {.shards = 6, .convolution = ConvAlgorithm::benchmark});
                  SGD sgd(model, {.lr = 0.01});
                  manual_seed(5);
                  const Tensor x = Tensor::randn({12, 32, 12, 12}), y = Tensor::randn({12, 64, 10, 10});
                  for (int i = 0; i < 3; ++i) model.step(sgd, x, y, mse_loss);
                  model.engine().verify_replicas();
                  const auto choices = model.engine().algorithms();
                  expect(choices.size() == 2, "not two choices");
                  expect(model.engine().algorithm_trials() <= 2, "a convolution was tried more than once");
                  group.store()->set(fmt::format("choices of {}", group.rank()), as_text(choices));
                  expect(group.store()->get("choices of 0") == as_text(choices), "the choices are not those of rank 0");
                  const auto tried =
                      model.engine().sum_over_ranks(static_cast<std::int64_t>(model.engine().algorithm_trials()));
                  expect(tried >= 2, "no rank tried");
              }) == "");
}

TEST_CASE("all ranks use the first answer, and later ranks are not asked") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const auto decide = decided_together(*group.store(), "test");
              const std::string own = group.rank() == 0 ? "zero" : "one";
              bool asked = false;
              const auto answer = [&] {
                  asked = true;
                  return own;
              };
              if (group.rank() == 1) expect(decide("early", answer) == "one" && asked, "the first rank was not asked");
              group.barrier();
              asked = false;
              expect(decide("early", answer) == "one" && !asked, "asked again");
              group.store()->set("found by " + own, decide("together", answer));
              expect(group.store()->get("found by zero") == group.store()->get("found by one"), "two answers");
          }) == "");
}

TEST_CASE("TF32 must be allowed on all ranks or none") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              expect_throws<InvalidArgument>(
                  "rank 1 has 2 shards, 0 and 0 bytes per bucket, not deterministic, TF32 is allowed; rank 0 has 2 "
                  "shards, 0 and 0 bytes per bucket, not deterministic",
                  [&] { DistributedDataParallel(seeded(), group, {.allow_tf32 = group.rank() == 1}); });
          }) == "");
}

TEST_CASE("benchmark mode must be set on all ranks or none") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              expect_throws<InvalidArgument>(
                  "rank 1 has 2 shards, 0 and 0 bytes per bucket, not deterministic; rank 0 has 2 shards, 0 and 0 "
                  "bytes per bucket, not deterministic, convolutions by benchmarking",
                  [&] {
                      const auto by_rule = ConvAlgorithm::automatic;
                      const auto tried = ConvAlgorithm::benchmark;
                      DistributedDataParallel(seeded(), group, {.convolution = group.rank() == 1 ? by_rule : tried});
                  });
          }) == "");
}
