// Ranks with different numbers of batches: results of each while the others continue, and the final state.
#include <cmath>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Net = Mlp<6, 5, 3>;

/// Batch `number` of a rank.
struct Rows {
    Tensor x, y;
    Rows(int rank, int number) {
        manual_seed(static_cast<std::uint64_t>(100 * rank + number));
        x = Tensor::randn({4 + rank, 6});
        y = Tensor::randn({4 + rank, 3});
    }
};

constexpr double rate = 0.05, momentum = 0.5;

/// The same on one plain module: round i has batch i of all ranks that have one. The sum of their gradients is divided
/// by the number of all ranks, or of the ranks that took part.
std::vector<float> expected(const std::vector<int>& batches, bool by_all) {
    Net net = seeded_mlp();
    SGD sgd(net, {.lr = rate, .momentum = momentum});
    const int rounds = *std::max_element(batches.begin(), batches.end());
    for (int i = 0; i < rounds; ++i) {
        const auto ranks = static_cast<int>(batches.size());
        int present = 0;
        for (const int count : batches) present += i < count ? 1 : 0;
        sgd.zero_grad();
        for (int rank = 0; rank < ranks; ++rank) {
            if (i >= batches[static_cast<std::size_t>(rank)]) continue;
            const Rows rows(rank, i);
            (squared_error(net.forward(rows.x), rows.y) * (1.0 / (by_all ? ranks : present))).backward();
        }
        sgd.step();
    }
    return net.first.weight.tensor().to_vector<float>();
}

void expect_close(const std::vector<float>& found, const std::vector<float>& wanted, const std::string& what) {
    for (std::size_t i = 0; i < wanted.size(); ++i)
        expect(std::abs(found[i] - wanted[i]) <= 1e-5F, fmt::format("{}: {} instead of {}", what, found[i], wanted[i]));
}

/// One batch of PyTorch's manual step.
void train(DistributedDataParallel<Net>& model, SGD& sgd, const Rows& rows) {
    sgd.zero_grad();
    squared_error(model.forward(rows.x), rows.y).backward();
    sgd.step();
}

}  // namespace

TEST_CASE("uneven inputs: gradients are the mean over all ranks, or over those that have batches") {
    for (const std::vector<int>& batches :
         {std::vector<int>{3, 5}, std::vector<int>{4, 1}, std::vector<int>{2, 4, 1}, std::vector<int>{3, 3},
          std::vector<int>{0, 3}, std::vector<int>{2, 0, 1}, std::vector<int>{0, 0, 2}})
        for (const bool by_all : {true, false}) {
            CAPTURE(batches, by_all);
            CHECK(on_ranks(static_cast<int>(batches.size()), [&](ProcessGroup& group) {
                      DistributedDataParallel model(seeded_mlp(), group);
                      SGD sgd(model, {.lr = rate, .momentum = momentum});
                      model.join(
                          [&] {
                              for (int i = 0; i < batches[static_cast<std::size_t>(group.rank())]; ++i)
                                  train(model, sgd, Rows(group.rank(), i));
                          },
                          {.divide_by_initial_world_size = by_all});
                      model.engine().verify_replicas();
                      expect_close(model->first.weight.tensor().to_vector<float>(), expected(batches, by_all),
                                   "weights");

                      // The momentum was copied with the model: after another batch on all ranks they are still equal.
                      train(model, sgd, Rows(0, 77));
                      model.engine().verify_replicas();
                  }) == "");
        }
}

TEST_CASE("uneven inputs with gradients that are reduced in every second step") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              SGD sgd(model, {.lr = rate});
              model.join([&] {
                  for (int i = 0; i < (group.rank() == 0 ? 6 : 2); ++i) {
                      const Rows rows(group.rank(), i);
                      if (i % 2 == 0) {
                          sgd.zero_grad();
                          const auto apart = model.no_sync();
                          squared_error(model.forward(rows.x), rows.y).backward();
                      } else {
                          squared_error(model.forward(rows.x), rows.y).backward();
                          sgd.step();
                      }
                  }
              });
              model.engine().verify_replicas();
              Net net = seeded_mlp();
              SGD plain(net, {.lr = rate});
              for (int i = 0; i < 6; ++i) {
                  if (i % 2 == 0) plain.zero_grad();
                  for (int rank = 0; rank < (i < 2 ? 2 : 1); ++rank) {
                      const Rows rows(rank, i);
                      (squared_error(net.forward(rows.x), rows.y) * 0.5).backward();
                  }
                  if (i % 2 == 1) plain.step();
              }
              expect_close(model->first.weight.tensor().to_vector<float>(),
                           net.first.weight.tensor().to_vector<float>(), "weights");
          }) == "");
}

TEST_CASE("a rank without any batch: custom shards, no_sync, parameters that only some ranks use, no batches at all") {
    // Rank 0 computes two of three shards, rank 1 has a batch for its one shard.
    const DistributedDataParallelOptions several_shards{.shards = 3};
    for (const auto& options : {several_shards, DistributedDataParallelOptions{.find_unused_parameters = true}}) {
        CAPTURE(options.shards);
        CHECK(on_ranks(2, [&](ProcessGroup& group) {
                  DistributedDataParallel model(seeded_mlp(), group, options);
                  SGD sgd(model, {.lr = rate, .momentum = momentum});
                  model.join([&] {
                      for (int i = 0; i < 3 * group.rank(); ++i) train(model, sgd, Rows(1, i));
                  });
                  model.engine().verify_replicas();
                  expect_close(model->first.weight.tensor().to_vector<float>(), expected({0, 3}, true), "weights");
              }) == "");
    }
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              SGD sgd(model, {.lr = rate});
              model.join([&] {
                  if (group.rank() == 0) return;
                  sgd.zero_grad();
                  {
                      const auto apart = model.no_sync();
                      squared_error(model.forward(Rows(1, 0).x), Rows(1, 0).y).backward();
                  }
                  squared_error(model.forward(Rows(1, 1).x), Rows(1, 1).y).backward();
                  sgd.step();
              });
              model.engine().verify_replicas();
              Net net = seeded_mlp();
              SGD plain(net, {.lr = rate});
              for (int i = 0; i < 2; ++i) (squared_error(net.forward(Rows(1, i).x), Rows(1, i).y) * 0.5).backward();
              plain.step();
              expect_close(model->first.weight.tensor().to_vector<float>(),
                           net.first.weight.tensor().to_vector<float>(), "weights");
          }) == "");
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              SGD sgd(model, {.lr = rate});
              model.join([] {});
              model.engine().verify_replicas();
              expect_close(model->first.weight.tensor().to_vector<float>(),
                           seeded_mlp().first.weight.tensor().to_vector<float>(), "weights");
          }) == "");
}

namespace {

/// Its forward has a number in addition to its tensor.
struct Scaled {
    Linear layer{6, 3};
    LOCKSTEP_MEMBERS(layer)

    Tensor forward(Tensor x, float scale) { return layer(x * scale); }
};

}  // namespace

TEST_CASE("throw_on_early_termination ends all ranks with the first that has no more batches") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              SGD sgd(model, {.lr = rate});
              int done = 0;
              expect_throws<StepError>("at least one rank has no batch left", [&] {
                  model.join(
                      [&] {
                          for (; done < (group.rank() == 0 ? 2 : 5); ++done)
                              train(model, sgd, Rows(group.rank(), done));
                      },
                      {.throw_on_early_termination = true});
              });
              expect(done == 2, fmt::format("{} batches were taken", done));
              model.engine().verify_replicas();
          }) == "");
}

TEST_CASE("join: a batch that cannot be imitated, a body that throws, step inside join, and nested joins") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(Scaled{}, group);
              SGD sgd(model, {.lr = rate});
              const auto one_batch = [&] {
                  squared_error(model.forward(Rows(1, 0).x, 2.0F), Rows(1, 0).y).backward();
                  sgd.step();
                  model.synchronize();
              };
              if (group.rank() == 0)
                  expect_throws<InvalidArgument>("inputs other than tensors", [&] { model.join([] {}); });
              else
                  expect_throws<CommunicationError>("rank 0", [&] { model.join(one_batch); });
          }) == "");
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              const auto cut_before = [&] {
                  const Tensor elsewhere = Tensor::empty({0, 6});
                  model.forward(ShardedTensor(cut_batch(10, 2), {elsewhere, Rows(1, 0).x.to(model.devices()[0])},
                                              nullptr, {1, 2}));
              };
              expect_throws<InvalidArgument>("already cut into shards", [&] {
                  model.join([&] {
                      if (group.rank() == 1) cut_before();
                  });
              });
          }) == "");
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              SGD sgd(model, {.lr = rate});
              const Rows rows(0, 0);
              if (group.rank() == 0)
                  expect_throws<Error>("tired", [&] { model.join([] { throw Error("tired"); }); });
              else
                  expect_throws<CommunicationError>("rank 0",
                                                    [&] { model.join([&] { train(model, sgd, Rows(1, 0)); }); });
          }) == "");
    CHECK(on_ranks(1, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded_mlp(), group);
              SGD sgd(model, {.lr = rate});
              const Rows rows(0, 0);
              expect_throws<InvalidArgument>("inside join",
                                             [&] { model.join([&] { model.step(sgd, rows.x, rows.y, mse_loss); }); });
              expect_throws<InvalidArgument>("called inside another join",
                                             [&] { model.join([&] { model.join([] {}); }); });
          }) == "");
}

TEST_CASE("uneven inputs without join: the error of the waiting rank names the rank that left") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const auto train_all = [&] {
                  DistributedDataParallel model(seeded_mlp(), group);
                  SGD sgd(model, {.lr = rate});
                  for (int i = 0; i < (group.rank() == 0 ? 1 : 4); ++i) train(model, sgd, Rows(group.rank(), i));
                  model.synchronize();
              };
              if (group.rank() == 0)
                  train_all();
              else
                  expect_throws<CommunicationError>("rank 0 has left", train_all);
          }) == "");
}
