// Several processes compute a step in microbatches: with eight shards the result is bit-identical to one process on one
// device.
#include <limits>
#include <memory>
#include <utility>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Losses of all steps, then parameters and buffers.
using Result = std::pair<std::vector<double>, std::vector<std::vector<float>>>;

const test::Images& images() {
    static const test::Images made(200);
    return made;
}

/// With denominators that depend on the targets.
CrossEntropyLoss weighted() {
    std::vector<float> weights;
    for (int c = 0; c < 10; ++c) weights.push_back(0.5F + 0.25F * static_cast<float>(c));
    return {{.weight = Tensor::from(weights, {10}), .ignore_index = 3}};
}

template <class Net>
Net seeded() {
    manual_seed(1);
    return Net{};
}

template <class Model>
std::vector<std::vector<float>> state_of(Model& model) {
    std::vector<std::vector<float>> state;
    for (const NamedTensor& named : named_tensors(model))
        state.push_back(named.member->tensor().detach().to(DType::f32).template to_vector<float>());
    return state;
}

template <class Model>
Result train(Model& model, Optimizer& optimizer, const StepOptions& how) {
    Result result;
    std::int64_t first = 0;
    // 26 rows: seven shards have 4 and one has none; 29: the last one has 1; 5: most ranks have none.
    for (const std::int64_t rows : {64, 26, 29, 5, 64}) {
        result.first.push_back(model
                                   .step(optimizer, images().batch(first, first + rows),
                                         images().targets(first, first + rows), weighted(), how)
                                   .item());
        first += rows;
    }
    model.engine().verify_replicas();
    result.second = state_of(*model);
    return result;
}

template <class Optimizer, class Model>
Result train_with(Model&& model, const StepOptions& how) {
    Optimizer optimizer(model, {.lr = 0.01});
    return train(model, optimizer, how);
}

template <class Net, class Optimizer = AdamW>
Result alone(const StepOptions& how) {
    return train_with<Optimizer>(DataParallel(seeded<Net>(), Devices({Device::cpu(0)}), {.shards = 8, .seed = 5}), how);
}

template <class Net>
void compare(ProcessGroup& group, DistributedDataParallelOptions options, const StepOptions& how) {
    options.shards = 8;
    options.seed = 5;
    const Result found = train_with<AdamW>(DistributedDataParallel(seeded<Net>(), group, options), how);
    const Result wanted = alone<Net>(how);
    const auto what = fmt::format("{} microbatches, buckets of {}", how.accumulation_steps, options.bucket_bytes);
    expect(found.first == wanted.first, what + ": different losses");
    expect(found.second == wanted.second, what + ": different weights or statistics");
}

double largest_difference(const Result& a, const Result& b) {
    double largest = 0;
    for (std::size_t t = 0; t < a.second.size(); ++t)
        for (std::size_t i = 0; i < a.second[t].size(); ++i)
            largest = std::max(largest, std::abs(static_cast<double>(a.second[t][i]) - b.second[t][i]));
    return largest;
}

}  // namespace

TEST_CASE("ranks that use microbatches are bit-identical to one process") {
    for (const int ranks : {1, 2, 3, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const int parts : {2, 3})
                      for (const std::size_t bucket : {std::size_t{1} << 20, std::size_t{4096}})
                          compare<test::Normed>(group, {.bucket_bytes = bucket}, {.accumulation_steps = parts});
                  compare<test::Synced>(group, {}, {.accumulation_steps = 3});
                  compare<test::Small>(group, {.find_unused_parameters = true}, {.accumulation_steps = 2});
              }) == "");
}

TEST_CASE("ranks on several hosts, or with clipping, use microbatches with the same result") {
    CHECK(on_ranks(
              4,
              [](ProcessGroup& group) {
                  compare<test::Normed>(group, {.bucket_bytes = 4096},
                                        {.accumulation_steps = 2, .clip = {ClipGradNorm{.max_norm = 0.1}}});
              },
              no_limit, 2) == "");
}

TEST_CASE("microbatches change the bits, so the comparison can fail") {
    CHECK((alone<test::Normed>({.accumulation_steps = 2}) != alone<test::Normed>({})));
}

TEST_CASE("the backend's all-reduce, and a hook, are called once per step for the sum of all microbatches") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const StepOptions how{.accumulation_steps = 2};
              const Result wanted = alone<test::Normed, SGD>(how);
              DistributedDataParallel fast(seeded<test::Normed>(), group,
                                           {.shards = 8, .reduction = ReductionMode::fast, .seed = 5});
              expect(largest_difference(train_with<SGD>(fast, how), wanted) < 1e-5,
                     "the fast reduction gives different weights");
              DistributedDataParallel hooked(seeded<test::Normed>(), group, {.shards = 8, .seed = 5});
              const auto calls = std::make_shared<int>(0);
              hooked.register_comm_hook(group, [calls](const GradientBucket& bucket, ProcessGroup& ranks) {
                  ++*calls;
                  return all_reduce_hook()(bucket, ranks);
              });
              expect(largest_difference(train_with<SGD>(hooked, how), wanted) < 1e-5, "a hook gives different weights");
              expect(*calls == 5, fmt::format("the hook was called {} times in 5 steps of one bucket", *calls));
          }) == "");
}

TEST_CASE("a microbatch that one rank must refuse refuses the step on all ranks, and training continues") {
    for (const std::int64_t bad_row : {0, 40, 63})  // in the first rank's first microbatch, and in the others' last
        CHECK(on_ranks(3, [&](ProcessGroup& group) {
                  DistributedDataParallel model(seeded<test::Normed>(), group, {.shards = 8, .seed = 5});
                  SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
                  const StepOptions how{.accumulation_steps = 2};
                  const auto step = [&](const Tensor& x) {
                      return model.step(sgd, x, images().targets(0, 64), nll_loss, how);
                  };
                  (void)step(images().batch(0, 64)).item();
                  const auto before = state_of(*model);
                  Tensor bad = images().batch(0, 64).contiguous();
                  bad = bad + 0.0;
                  bad.select(0, bad_row).fill_(std::numeric_limits<double>::quiet_NaN());
                  const StepLoss refused = step(bad);
                  expect_throws<StepError>("loss is not finite", [&] { (void)refused.item(); });
                  expect(state_of(*model) == before, "the refused step changed something");
                  expect(std::isfinite(step(images().batch(0, 64)).item()), "the next step has no loss");
                  expect(state_of(*model) != before, "the next step changed nothing");
                  model.engine().verify_replicas();
              }) == "");
}
