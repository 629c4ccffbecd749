// Options of DistributedDataParallel: a static graph, broadcast buffers, the order of buckets; and actions of only one
// rank.
#include <fstream>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Uses its second half when `both`.
struct Halves {
    Linear first{4, 3}, second{4, 3};
    bool both = false;
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) { return both ? first(x) + second(x) : first(x); }
};

/// Listed in a different order than used.
struct Shuffled {
    Linear b{8, 8}, d{8, 8}, a{8, 8}, c{8, 8};
    LOCKSTEP_MEMBERS(b, d, a, c)
    Tensor forward(const Tensor& x) { return d(relu(c(relu(b(relu(a(x))))))); }
};

struct Normed {
    Conv2d conv{1, 3, 2};
    BatchNorm2d norm{3};
    LOCKSTEP_MEMBERS(conv, norm)
    Tensor forward(const Tensor& x) { return norm(conv(x)); }
};

/// Its running mean is that of the last batch.
struct Averaged {
    explicit Averaged(BatchNormStatistics statistics) : norm(1, {.momentum = 1, .statistics = statistics}) {}
    BatchNorm2d norm;
    LOCKSTEP_MEMBERS(norm)
    Tensor forward(const Tensor& x) { return norm(x).flatten(1); }
};

}  // namespace

TEST_CASE("static_graph: unused parameters are unchanged, and later steps must use the same parameters") {
    const bool finds = GENERATE(false, true);  // find_unused_parameters does not change the result
    CHECK(on_ranks(2, [finds](ProcessGroup& group) {
              manual_seed(1);
              DistributedDataParallel model(Halves{}, group, {.find_unused_parameters = finds, .static_graph = true});
              SGD sgd(model, {.lr = 0.1});
              const Tensor x = Tensor::randn({8, 4}), y = Tensor::randn({8, 3});
              const auto second = model->second.weight.tensor().to_vector<float>();
              for (int i = 0; i < 3; ++i) (void)model.step(sgd, x, y, mse_loss).item();
              (void)model.step(sgd, x.slice(0, 0, 6), y.slice(0, 0, 6), mse_loss).item();
              expect(model->second.weight.tensor().to_vector<float>() == second, "an unused parameter changed");
              model->both = true;
              const Tensor other = Tensor::randn({4, 4}), target = Tensor::randn({4, 3});  // traced again
              expect_throws<InvalidArgument>(
                  "the training graph has changed: second.bias gets a gradient now and did not",
                  [&] { model.step(sgd, other, target, mse_loss); });
          }) == "");
}

TEST_CASE("all ranks have the same running statistics: those of all ranks' rows, or of shard 0 as in PyTorch") {
    for (const bool longer : {false, true})
        for (const auto& [statistics, expected] :
             {std::pair{BatchNormStatistics::all_shards, 1.5f}, {BatchNormStatistics::shard0, 0.5f}}) {
            INFO("manual step " << longer << ", mean " << expected);
            CHECK(
                on_ranks(2, [&](ProcessGroup& group) {
                    DistributedDataParallel model(Averaged(statistics), group, {.shards = 2});
                    SGD sgd(model, {.lr = 0.1});
                    const Tensor x = Tensor::from(std::vector<float>{0, 0, 1, 1, 2, 2, 3, 3}, {4, 1, 2, 1});
                    const Tensor y = Tensor::zeros({4, 2});
                    const int first = 2 * group.rank();
                    if (longer)
                        mse_loss(model.forward(x.slice(0, first, first + 2)), y.slice(0, first, first + 2)).backward();
                    else
                        (void)model.step(sgd, x, y, mse_loss).item();
                    model.synchronize();
                    const float found = model->norm.running_mean->tensor().to_vector<float>()[0];
                    expect(found == expected, "a running mean of " + std::to_string(found));
                }) == "");
        }
}

TEST_CASE("broadcast_buffers: all ranks use the buffers that rank 0 wrote") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const auto mean_after = [&](bool broadcasts) {
                  DistributedDataParallel model(Normed{}, group, {.broadcast_buffers = broadcasts});
                  const NoGrad no_grad;
                  model->norm.running_mean->tensor().fill_(10 + group.rank());
                  model.eval();
                  (void)model.forward(Tensor::zeros({2, 1, 4, 4}));
                  model.synchronize();
                  return model->norm.running_mean->tensor().to_vector<float>()[0];
              };
              expect(mean_after(true) == 10, "the buffer of rank 0 was not received");
              expect(mean_after(false) == static_cast<float>(10 + group.rank()),
                     "a buffer was received without the option");
          }) == "");
}

TEST_CASE("a model with gradients is rejected, because they would not be reduced over the ranks") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              Halves net;
              const auto wrap = [&] { DistributedDataParallel model(std::move(net), group); };
              for (const NamedTensor& named : named_tensors(net))
                  named.member->tensor().set_grad(Tensor::ones(named.member->tensor().shape()));
              expect_throws<InvalidArgument>(" has a gradient, which is not reduced over the ranks; expected none",
                                             wrap);
          }) == "");
}

TEST_CASE("buckets follow the order in which backward completes gradients, for any order of members") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              manual_seed(1);
              DistributedDataParallel model(Shuffled{}, group, {.bucket_bytes = 300, .first_bucket_bytes = 300});
              std::string order;
              model.register_comm_hook(group, [&](const GradientBucket& bucket, ProcessGroup& ranks) {
                  for (const auto& part : bucket.parts())
                      if (order.empty() || order.back() != part.name[0]) order += part.name[0];
                  return all_reduce_hook()(bucket, ranks);
              });
              SGD sgd(model, {.lr = 0.1});
              (void)model.step(sgd, Tensor::randn({8, 8}), Tensor::randn({8, 8}), mse_loss).item();
              expect(order == "dcba", "the order was " + order);
          }) == "");
}

TEST_CASE("save writes only on rank 0") {
    const TemporaryDirectory place;
    CHECK(on_ranks(2, [&](ProcessGroup& group) {
              DistributedDataParallel model(Halves{}, group);
              SGD sgd(model, {.lr = 0.1});
              const auto file = place / fmt::format("weights{}.safetensors", group.rank());
              save(model, file);
              save_resume(model, sgd, {}, file);
              expect(std::filesystem::exists(file) == (group.rank() == 0), "weights");
              expect(std::filesystem::exists(resume_path(file)) == (group.rank() == 0), "the state of the run");
          }) == "");
}

TEST_CASE("once_per_host: one rank prepares, the others wait, and a failure is thrown on all") {
    const TemporaryDirectory place;
    CHECK(on_ranks(3, [&](ProcessGroup& group) {
              group.once_per_host([&] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                  std::ofstream(place / "data", std::ios::app) << group.rank();
              });
              std::string text;
              std::ifstream(place / "data") >> text;
              expect(text == "0", "the data is '" + text + "'");
              const auto pair = group.subgroup({2, 1});
              if (pair) {
                  bool own = false;
                  pair->once_per_host([&] { own = true; });
                  expect(own == (group.rank() == 2), "a rank other than the group's first prepared");
              }
              const auto fail = [&] { group.once_per_host([] { throw Error("the disk is full"); }); };
              if (group.rank() == 0)
                  expect_throws<Error>("the disk is full", fail);
              else
                  expect_throws<CommunicationError>("rank 0 could not prepare: the disk is full", fail);
          }) == "");
}

TEST_CASE("a rank that makes another call during training is reported as such, not as one with another forward") {
    for (const int trains : {0, 1})
        CHECK(on_ranks(2, [&](ProcessGroup& group) {
                  manual_seed(1);
                  DistributedDataParallel model(Halves{}, group, {.static_graph = true});
                  SGD sgd(model, {.lr = 0.1});
                  const Tensor x = Tensor::randn({8, 4}), y = Tensor::randn({8, 3});
                  for (int i = 0; i < 3; ++i) (void)model.step(sgd, x, y, mse_loss).item();
                  const auto train = [&] {
                      for (int i = 0; i < 10; ++i) (void)model.step(sgd, x, y, mse_loss).item();
                  };
                  const auto count = [&] {
                      for (int i = 0; i < 100; ++i) (void)model.engine().sum_over_ranks(1);
                  };
                  if (group.rank() == trains)
                      expect_throws<CommunicationError>(
                          fmt::format("rank {} makes another call while others end a step", 1 - trains), train);
                  else
                      expect_throws<CommunicationError>("LOCKSTEP_DEBUG=detail names both calls", count);
              }) == "");
}
