// DistributedDataParallel on GPUs: collectives use pinned memory and give the same bits, and an error that stops one
// rank stops all of them.
#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/cuda_standin/ranks_training.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("ranks with one GPU each train bit-identically to one process") {
    for (const int ranks : {1, 2, 3})
        for (const std::string& backend : backends_here(ranks))
            for (const int delay_us : {0, 150}) {
                INFO(backend << ", " << ranks << " ranks, delays " << delay_us);
                CHECK(on_gpus(backend, ranks, [&](ProcessGroup& group) {
                          test::set_delays(static_cast<std::uint64_t>(group.rank()) + 1, delay_us);
                          Lines lines = same_bits<test::Small>(group, {.shards = 8, .bucket_bytes = 4096});
                          for (const Lines& more :
                               {same_bits<test::Normed>(group, {.shards = 8}),
                                same_bits<test::Synced>(group, {.shards = 8, .bucket_bytes = 40000})})
                              lines.insert(lines.end(), more.begin(), more.end());
                          return lines;
                      }) == "");
            }
}

TEST_CASE("ranks with one GPU each and microbatches train bit-identically to one process") {
    const StepOptions how{.accumulation_steps = 2};
    for (const int ranks : {2, 3})
        for (const std::string& backend : backends_here(ranks))
            CHECK(on_gpus(backend, ranks, [&](ProcessGroup& group) {
                      Lines lines = same_bits<test::Small>(group, {.shards = 8, .bucket_bytes = 4096}, 3, nullptr, how);
                      const Lines more = same_bits<test::Normed>(group, {.shards = 8}, 3, nullptr, how);
                      lines.insert(lines.end(), more.begin(), more.end());
                      return lines;
                  }) == "");
}

TEST_CASE("ranks with another number of shards give other bits, so the comparison can fail") {
    const std::string found = on_gpus("shm", 2, [](ProcessGroup& group) {
        Rank<test::Small> rank(group, {.shards = 7});
        rank.run(2);
        Trained<test::Small> alone(gpus(1), {.shards = 8});
        alone.run(2, rows);
        return test::values_of(rank.model.module()) == alone.values() ? Lines{"the same"} : Lines();
    });
    CHECK(found == "");
}

TEST_CASE("the backend's all-reduce and communication hooks are exact for two summands") {
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              return same_bits<test::Normed>(group,
                                             {.shards = 2, .reduction = ReductionMode::fast, .bucket_bytes = 40000});
          }) == "");
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              return same_bits<test::Normed>(group, {.shards = 2, .bucket_bytes = 40000}, 3, all_reduce_hook());
          }) == "");
}

TEST_CASE("the manual step leaves the mean of the ranks' gradients") {
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              const Images images(16);
              const int own = 8 * group.rank();
              Rank<test::Dense> rank(group, {.shards = 2});
              Trained<test::Dense> whole(gpus(2), {.shards = 2});
              manual_seed(3);
              const Tensor x = Tensor::rand({16, 64}), target = images.targets(0, 16);
              for (int i = 0; i < 3; ++i) {
                  rank.sgd.zero_grad();
                  const Tensor output = rank.model(x.slice(0, own, own + 8));
                  nll_loss(output, images.targets(own, own + 8).to(output.device())).backward();
                  rank.sgd.step();
                  whole.model.step(whole.sgd, x, target, nll_loss);
              }
              rank.model.synchronize();
              whole.model.synchronize();
              rank.model.engine().verify_replicas();
              const auto found = test::values_of(rank.model.module()), expected = whole.values();
              for (std::size_t p = 0; p < expected.size(); ++p)
                  for (std::size_t i = 0; i < expected[p].size(); ++i)
                      if (found[p][i] != Approx(expected[p][i]).epsilon(1e-4).margin(1e-5))
                          return Lines{"other weights"};
              return Lines();
          }) == "");
}

TEST_CASE("no_sync: gradients stay on the rank's GPU until the next backward outside it") {
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              Rank<test::Dense> rank(group, {.shards = 2});
              manual_seed(3);
              const Tensor x = Tensor::rand({16, 64}).slice(0, 8 * group.rank(), 8 * group.rank() + 8);
              const Tensor target = Images(8).targets(0, 8).to(Device::cuda(0));
              const auto backward = [&] { nll_loss(rank.model(x), target).backward(); };
              const auto gradients = [&] {
                  std::vector<float> all;
                  for (const NamedTensor& named : named_tensors(rank.model.module()))
                      for (const float value : named.member->tensor().grad().to_vector<float>()) all.push_back(value);
                  return all;
              };
              backward();
              const std::vector<float> once = gradients();
              rank.sgd.zero_grad();
              {
                  const auto alone = rank.model.no_sync();
                  backward();
              }
              const std::vector<float> own = gradients();
              backward();
              const std::vector<float> both = gradients();
              if (own == once) return Lines{"the gradients of one rank are those of both"};
              for (std::size_t i = 0; i < once.size(); ++i)
                  if (both[i] != Approx(2 * once[i]).epsilon(1e-4).margin(1e-6)) return Lines{"other gradients"};
              return Lines();
          }) == "");
}

namespace {

struct TwoHeads {
    Linear first{64, 10}, second{64, 10}, never{64, 10};
    LOCKSTEP_MEMBERS(first, second, never)
    Tensor forward(const Tensor& x, int head) { return log_softmax(head == 0 ? first(x) : second(x), 1); }
};

}  // namespace

TEST_CASE("parameters unused on some ranks get zeros from these, and entirely unused ones are unchanged") {
    for (const std::string& backend : backends_here(2)) {
        INFO(backend);
        CHECK(on_gpus(backend, 2, [](ProcessGroup& group) {
                  const auto made = [] {
                      manual_seed(1);
                      return TwoHeads{};
                  };
                  DistributedDataParallel model(made(), group, Device::cuda(0),
                                                {.shards = 2, .find_unused_parameters = true});
                  TwoHeads plain = made();
                  const SgdOptions options{.lr = 0.1, .momentum = 0.5};
                  SGD sgd(model, options), own(plain, options);
                  const Images images(16);
                  manual_seed(3);
                  const Tensor x = Tensor::rand({16, 64}), y = images.targets(0, 16);
                  const auto rows = [&](const Tensor& all, int rank) { return all.slice(0, 8 * rank, 8 * rank + 8); };
                  for (int step = 0; step < 4; ++step) {
                      const auto head = [&](int rank) { return step == 2 ? 0 : rank; };
                      sgd.zero_grad();
                      own.zero_grad();
                      const Tensor output = model(rows(x, group.rank()), head(group.rank()));
                      nll_loss(output, rows(y, group.rank()).to(output.device())).backward();
                      for (const int rank : {0, 1})
                          (nll_loss(plain.forward(rows(x, rank), head(rank)), rows(y, rank)) * 0.5).backward();
                      sgd.step();
                      own.step();
                  }
                  model.synchronize();
                  const auto found = test::values_of(model.module()), expected = test::values_of(plain);
                  for (std::size_t p = 0; p < expected.size(); ++p)
                      for (std::size_t i = 0; i < expected[p].size(); ++i)
                          if (found[p][i] != Approx(expected[p][i]).epsilon(1e-4).margin(1e-5))
                              return Lines{"different weights in parameter " + std::to_string(p)};
                  return model.module().never.weight.tensor().grad().defined()
                             ? Lines{"an unused parameter has a gradient"}
                             : Lines();
              }) == "");
    }
}

TEST_CASE("a step that one GPU's rank must refuse is refused on all ranks, and training continues") {
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              const Images images(16);
              Rank<test::Small> rank(group, {.shards = 8});
              Trained<test::Small> alone(gpus(1), {.shards = 8});
              std::vector<std::int64_t> labels = images.batch_labels(0, 16);
              labels[13] = 10;  // a row of rank 1
              bool refused = false;
              try {
                  rank.model.step(rank.sgd, images.batch(0, 16), Tensor::from(labels, {16}), nll_loss).item();
              } catch (const StepError& error) {
                  refused = contains(error.what(), "target 10 in row 13") && contains(error.what(), "rank 1");
              }
              rank.step(images, 0, 16);
              rank.model.synchronize();
              alone.step(images, 0, 16);
              alone.model.synchronize();
              Lines lines;
              if (!refused) lines.push_back("the step was not refused");
              if (test::values_of(rank.model.module()) != alone.values())
                  lines.push_back("the refused step changed the weights");
              return lines;
          }) == "");
}

TEST_CASE("a stop on one rank stops all ranks before the same step without waiting for GPUs") {
    for (const std::string& backend : backends_here(3)) {
        INFO(backend);
        CHECK(on_gpus(backend, 3, [](ProcessGroup& group) {
                  test::set_delays(static_cast<std::uint64_t>(group.rank()) + 1, 150);
                  const Images images(16);
                  Rank<test::Small> rank(group, {.shards = 3});
                  Lines lines;
                  for (int round = 0; round < 3; ++round) {
                      int steps = 0;
                      std::optional<int> why;
                      while (!(why = rank.model.engine().poll_stop(
                                   group.rank() == round && steps >= 4 ? std::optional<int>(15) : std::nullopt)) &&
                             steps < 50) {
                          rank.step(images, 0, 16);
                          ++steps;
                      }
                      if (rank.model.engine().sum_over_ranks(steps) != 3 * steps) lines.push_back("other steps");
                      if (steps > 8 || why != 15) lines.push_back("stopped after " + std::to_string(steps));
                  }
                  return lines;
              }) == "");
    }
}

TEST_CASE("if a rank is killed, the others fail at once and no step is partially committed") {
    for (const std::string& backend : backends_here(3)) {
        INFO(backend);
        const std::string found = on_gpus(backend, 3, [&](ProcessGroup& group) {
            const Images images(16);
            Rank<test::Small> rank(group, {.shards = 6});  // one bucket
            const auto steps = [&] {
                for (int i = 0; i < 20; ++i) {
                    if (i == 7) {
                        rank.model.synchronize();
                        rank.model.engine().sum_over_ranks(i);  // until all have finished 7 steps
                        if (group.rank() == 1) ::raise(SIGKILL);
                    }
                    rank.step(images, 0, 16);
                }
                rank.model.synchronize();
            };
            Lines lines;
            const std::string message = lost(steps);
            if (!contains(message, " of 3: ")) lines.push_back(message);
            if (contains(message, "committed")) lines.push_back("committed in part: " + message);
            Trained<test::Small> alone(gpus(1), {.shards = 6});
            for (int i = 0; i < 7; ++i) alone.step(images, 0, 16);
            alone.model.synchronize();
            if (test::values_of(rank.model.module()) != alone.values())
                lines.push_back("the weights are not those after 7 steps");
            const std::string again = lost(steps);
            if (!contains(again, " of 3: ")) lines.push_back("again: " + again);
            return lines;
        });
        CHECK(found == "rank 1: ended by signal 9\n");
    }
}

TEST_CASE("neither a failed bucket nor later buckets are committed") {
    for (const int bad : {0, 1}) {
        INFO("bucket " << bad);
        CHECK(on_gpus("shm", 2, [&](ProcessGroup& group) {
                  const Images images(16);
                  Rank<test::Small> rank(group, {.shards = 2, .bucket_bytes = 4096});
                  rank.model.register_comm_hook(group,
                                                [&, step = 0](const GradientBucket& bucket, ProcessGroup& own) mutable {
                                                    step += bucket.index() == 0 ? 1 : 0;
                                                    if (step == 3 && bucket.index() == bad && own.rank() == 1)
                                                        throw std::runtime_error("the hook failed");
                                                    own.all_reduce(bucket.buffer());
                                                    return bucket.buffer();
                                                });
                  const std::string message = lost([&] {
                      for (int i = 0; i < 10; ++i) rank.step(images, 0, 16);
                  });
                  Trained<test::Small> alone(gpus(1), {.shards = 2});
                  for (int i = 0; i < 2; ++i) alone.step(images, 0, 16);
                  alone.model.synchronize();
                  Lines lines;
                  if (!contains(message, "the hook failed")) lines.push_back(message);
                  // With several buckets, the first one is updated while the second one is reduced.
                  if (contains(message, "was committed") != (bad > 0))
                      lines.push_back("bucket " + std::to_string(bad) + ": " + message);
                  if (bad == 0 && test::values_of(rank.model.module()) != alone.values())
                      lines.push_back("the weights are not those after two steps");
                  return lines;
              }) == "");
    }
}

TEST_CASE("a lost GPU ends training on all ranks") {
    const std::string found = on_gpus("shm", 2, [](ProcessGroup& group) {
        const Images images(16);
        Rank<test::Small> rank(group, {.shards = 2});
        rank.step(images, 0, 16);
        rank.model.synchronize();
        if (group.rank() == 1) test::lose_context(Device::cuda(0));
        try {
            for (int i = 0; i < 10; ++i) rank.step(images, 0, 16);
        } catch (const Error& error) {
            return Lines{error.what()};
        }
        return Lines{"nothing was thrown"};
    });
    INFO(found);
    CHECK(contains(found, "rank 0: rank 0 of 2: "));
    CHECK(contains(found, "cudaErrorIllegalAddress"));
}
