// Every optimizer in several processes: with frozen and unused parameters, accumulated gradients, and runs that resume
// from a file in another number of processes, or in one. Backends, and more ranks: test_ddp_bits.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/training.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// `still` is frozen, and `unused` is not used.
struct Net {
    Linear first{6, 20}, still{20, 20}, second{20, 3}, unused{4, 4};
    LOCKSTEP_MEMBERS(first, still, second, unused)
    Tensor forward(const Tensor& x) const { return second(tanh(still(tanh(first(x))))); }
};
using Ranks = DistributedDataParallel<Net>;
using Alone = DataParallel<Net>;
using Values = std::vector<std::vector<float>>;

Net seeded() {
    manual_seed(3);
    Net net;
    net.still.weight->requires_grad_(false);
    return net;
}

Values values_of(const Net& trained) {
    Net net = trained;
    Values values;
    for (const NamedTensor& named : named_tensors(net)) values.push_back(named.member->tensor().to_vector<float>());
    return values;
}

/// The batch of one step, or of one rank in it.
struct Batch {
    Tensor x, y;
    explicit Batch(int number) {
        manual_seed(static_cast<std::uint64_t>(50 + number));
        x = Tensor::randn({16, 6});
        y = Tensor::randn({16, 3});
    }
};

template <class Model>
void steps(Model& model, Optimizer& optimizer, int first, int last) {
    for (int step = first; step < last; ++step) {
        const Batch batch(step);
        model.step(optimizer, batch.x, batch.y, mse_loss);
    }
    model.synchronize();
}

/// The loss of a rank's rows in one part of a step.
Tensor loss_of(const Tensor& output, const Tensor& y) { return mse_loss(output, y.to(output.device())).value(); }

double relative_difference(const Values& a, const Values& b) {
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < a.size(); ++k)
        for (std::size_t i = 0; i < a[k].size(); ++i) {
            difference += std::pow(a[k][i] - b[k][i], 2);
            norm += std::pow(b[k][i], 2);
        }
    return std::sqrt(difference / norm);
}

/// Buckets that begin within parameters.
DistributedDataParallelOptions options() {
    return {.shards = 8, .bucket_bytes = 512, .first_bucket_bytes = 256, .find_unused_parameters = true};
}

/// Trains with every optimizer from step `first` on; if that is not 0, from the file of the other number of ranks.
void train_all(ProcessGroup& group, const test::TemporaryDirectory& directory, int first, int last) {
    for (std::size_t i = 0; i < test::all_optimizers<Ranks>().size(); ++i) {
        const auto& named = test::all_optimizers<Ranks>()[i];
        const std::string file = directory / (std::to_string(i) + ".safetensors");
        Ranks model(seeded(), group, options());
        const auto optimizer = named.make(model);
        const auto check = [&](bool good, const char* what) { expect(good, fmt::format("{}: {}", named.name, what)); };
        if (first > 0) {
            optimizer->set_lr(0.5);  // overridden by the file
            check(load_checkpoint(model, *optimizer, file).has_value(), "the file has no run to resume");
        }
        steps(model, *optimizer, first, last);
        model.engine().verify_replicas();
        Alone one(seeded(), Devices({Device::cpu(0)}), {.shards = 8});
        const auto of_one = test::all_optimizers<Alone>()[i].make(one);
        steps(one, *of_one, 0, last);
        const Values values = values_of(*model), before = values_of(seeded());
        check(values == values_of(*one), "the ranks are not bit-identical to one process");
        check(values[0] != before[0], "the optimizer has no effect");
        check(values[2] == before[2], "a frozen parameter changed");
        check(values[6] == before[6] && values[7] == before[7], "an unused parameter changed");
        save_checkpoint(model, *optimizer, {.steps = model.engine().steps_done()}, file);
        group.barrier();
    }
}

}  // namespace

TEST_CASE("every optimizer is bit-identical to one process, and resumes with another number of processes") {
    const test::TemporaryDirectory directory;
    int first = 0;
    for (const int ranks : {3, 1, 2}) {
        INFO(ranks << " ranks from step " << first);
        CHECK(on_ranks(ranks, [&](ProcessGroup& group) { train_all(group, directory, first, first + 2); }) == "");
        first += 2;
    }
}

TEST_CASE("every optimizer accepts gradients that ranks accumulated") {
    constexpr int ranks = 2, parts = 3;
    CHECK(on_ranks(ranks, [&](ProcessGroup& group) {
              for (std::size_t i = 0; i < test::all_optimizers<Ranks>().size(); ++i) {
                  Ranks model(seeded(), group, {.find_unused_parameters = true});
                  Net net = seeded();
                  const auto optimizer = test::all_optimizers<Ranks>()[i].make(model);
                  const auto plain = test::all_optimizers<Net>()[i].make(net);
                  for (int step = 0; step < 3; ++step) {
                      optimizer->zero_grad();
                      plain->zero_grad();
                      for (int part = 0; part < parts; ++part) {
                          const auto go_back = [&] {
                              const Batch own(100 * step + 10 * part + group.rank());
                              loss_of(model.forward(own.x), own.y).backward();
                          };
                          if (part + 1 < parts) {
                              const auto apart = model.no_sync();
                              go_back();
                          } else {
                              go_back();
                          }
                          for (int rank = 0; rank < ranks; ++rank) {
                              const Batch batch(100 * step + 10 * part + rank);
                              (loss_of(net.forward(batch.x), batch.y) * (1.0 / ranks)).backward();
                          }
                      }
                      optimizer->step();
                      plain->step();
                  }
                  model.engine().verify_replicas();
                  const double error = relative_difference(values_of(*model), values_of(net));
                  // The sums have another order; Lion's sign makes the difference larger.
                  expect(error < 2e-3, fmt::format("{}: {}", test::all_optimizers<Net>()[i].name, error));
              }
          }) == "");
}

TEST_CASE("ranks whose optimizers differ get an error before any weight is updated") {
    const auto refused = [](const std::function<std::unique_ptr<Optimizer>(Ranks&, int)>& make) {
        CHECK(on_ranks(2, [&](ProcessGroup& group) {
                  Ranks model(seeded(), group, {.find_unused_parameters = true});
                  const auto optimizer = make(model, group.rank());
                  const Values before = values_of(*model);
                  expect_throws<CommunicationError>("have different optimizers", [&] {
                      steps(model, *optimizer, 0, 1);
                      model.synchronize();
                  });
                  expect(values_of(*model) == before, "the step changed something");
              }) == "");
    };
    refused([](Ranks& model, int rank) -> std::unique_ptr<Optimizer> {
        if (rank == 1) return std::make_unique<SGD>(model->second, SGD::Options{.lr = 0.1});
        return std::make_unique<SGD>(model, SGD::Options{.lr = 0.1});
    });
    refused([](Ranks& model, int rank) -> std::unique_ptr<Optimizer> {
        return std::make_unique<SGD>(model, SGD::Options{.lr = 0.1, .momentum = rank == 1 ? 0.9 : 0});
    });
    refused([](Ranks& model, int rank) -> std::unique_ptr<Optimizer> {
        if (rank == 1) return std::make_unique<Adam>(model, Adam::Options{.lr = 0.1});
        return std::make_unique<AdamW>(model, AdamW::Options{.lr = 0.1});
    });
}
