// find_unused_parameters: parameters that all ranks, some of them or none use. The reference is one plain module, which
// adds up the gradients of all ranks, or DataParallel, whose masks zero the values that a rank does not use.
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Head 0 uses `first`; head 1 uses `second`, with another layer before it and one after it; head 2 uses both. `never`
/// is unused.
struct Heads {
    Linear start{8, 12}, early{8, 12}, first{12, 5}, second{12, 5}, more{5, 5}, never{12, 5};
    BatchNorm2d norm{3};
    LOCKSTEP_MEMBERS(start, early, norm, first, second, more, never)

    Tensor trunk(const Tensor& x) { return flatten(relu(norm(x.reshape({x.size(0), 3, 2, 2}))), 1); }
    Tensor forward(const Tensor& x, int head) {
        if (head == 0) return first(trunk(start(x)));
        if (head == 1) return more(relu(second(trunk(early(x)))));
        const Tensor h = trunk(start(x) + early(x));
        return first(h) + more(relu(second(h)));
    }
};

/// Computes both heads if ranks use different ones: `mask` and `other` select the head that a row uses.
struct Masked : Heads {
    Tensor forward(const Tensor& x, const Tensor& mask, const Tensor& other, int head) {
        if (head >= 0) return Heads::forward(x, head);
        const Tensor h = trunk(start(x) * mask + early(x) * other);
        return first(h) * mask + more(relu(second(h)) * other) * other;
    }
};

template <class Net = Heads>
Net seeded() {
    manual_seed(5);
    return Net{};
}

using Values = std::vector<float>;

/// By name; empty if a parameter has no gradient.
template <class Net>
std::map<std::string, Values> gradients_of(Net& net) {
    std::map<std::string, Values> result;
    for (const NamedTensor& named : named_tensors(net)) {
        const Tensor gradient = named.member->tensor().grad();
        result[named.name] = gradient.defined() ? gradient.template to_vector<float>() : Values();
    }
    return result;
}

template <class Net>
std::map<std::string, Values> values_of(Net& net) {
    std::map<std::string, Values> result;
    for (const NamedTensor& named : named_tensors(net))
        if (named.is_parameter) result[named.name] = named.member->tensor().template to_vector<float>();
    return result;
}

void expect_close(const std::map<std::string, Values>& found, const std::map<std::string, Values>& wanted, double by,
                  const std::string& what) {
    for (const auto& [name, values] : wanted) {
        const Values& own = found.at(name);
        expect(own.size() == values.size(),
               fmt::format("{}: {} has {} values, not {}", what, name, own.size(), values.size()));
        for (std::size_t i = 0; i < values.size(); ++i)
            expect(std::abs(own[i] - values[i]) <= by * (1 + std::abs(values[i])),
                   fmt::format("{}: {} [{}] is {}, not {}", what, name, i, own[i], values[i]));
    }
}

/// Rows of a rank in one step.
struct Rows {
    Tensor x, y;
    Rows(int rank, int step) {
        manual_seed(static_cast<std::uint64_t>(1000 * step + rank));
        x = Tensor::randn({7, 8});  // two shards have 4 and 3, three have 3, 3 and 1
        y = Tensor::randn({7, 5});
    }
};

Tensor loss_of(const Tensor& output, const Tensor& target) {
    const Tensor difference = output - target.to(output.device());
    return sum(difference * difference) * (1.0 / static_cast<double>(target.numel()));
}

/// The head that a rank uses. Step 0: a different one on each; 1 and 4: the same on all; 3: both on rank 0 only.
int head_of(int rank, int step) {
    constexpr std::array<std::array<int, 5>, 4> heads{
        {{0, 0, 1, 2, 0}, {1, 0, 1, 0, 0}, {0, 0, 0, 0, 0}, {2, 0, 1, 0, 0}}};
    return heads[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
}
constexpr int steps = 5;
constexpr SgdOptions settings{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1};

/// All batches of a step one after the other: parameters that a rank does not use get nothing from it.
void reference_backward(Heads& net, int ranks, int step) {
    for (int rank = 0; rank < ranks; ++rank) {
        const Rows rows(rank, step);
        (loss_of(net.forward(rows.x, head_of(rank, step)), rows.y) * (1.0 / ranks)).backward();
    }
}

void backward(DistributedDataParallel<Heads>& model, int rank, int step) {
    const Rows rows(rank, step);
    loss_of(model.forward(rows.x, head_of(rank, step)), rows.y).backward();
}

void train_longer(ProcessGroup& group, DistributedDataParallelOptions options, bool hook) {
    options.find_unused_parameters = true;
    DistributedDataParallel model(seeded(), group, options);
    if (hook) model.register_comm_hook(group, all_reduce_hook());
    model.eval();
    Heads net = seeded();
    set_training(net, false);  // every rank normalizes in the same way
    SGD sgd(model, settings), plain(net, settings);
    for (int step = 0; step < steps; ++step) {
        sgd.zero_grad();
        plain.zero_grad();
        backward(model, group.rank(), step);
        reference_backward(net, group.size(), step);
        expect_close(gradients_of(model.module()), gradients_of(net), 1e-5, fmt::format("gradients of step {}", step));
        sgd.step();
        plain.step();
    }
    model.engine().verify_replicas();
    expect_close(values_of(model.module()), values_of(net), 1e-5, "parameters");
    expect(model->never.weight.tensor().to_vector<float>() == seeded().never.weight.tensor().to_vector<float>(),
           "an unused parameter changed");
}

bool gloo_built_in() {
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.name == "gloo") return backend.present;
    return false;
}

}  // namespace

TEST_CASE("parameters used on some ranks get the mean with zeros from the others, and unused ones are unchanged") {
    const int size = GENERATE(2, 3, 4);  // four: on two hosts
    if (size == 4 && !gloo_built_in()) return;
    struct Case {
        int shards;  // per rank
        std::size_t bucket;
        ReductionMode reduction;
    };
    for (const auto& [shards, bucket, reduction] :
         {Case{1, 0, ReductionMode::root}, Case{3, 96, ReductionMode::root}, Case{2, 0, ReductionMode::fast},
          Case{1, 96, ReductionMode::fast}}) {
        CAPTURE(size, shards, bucket, reduction == ReductionMode::fast);
        const DistributedDataParallelOptions options{
            .shards = shards * size, .reduction = reduction, .bucket_bytes = bucket, .first_bucket_bytes = bucket};
        CHECK(on_ranks(
                  size, [&](ProcessGroup& group) { train_longer(group, options, false); }, no_limit,
                  size == 4 ? 2 : 0) == "");
    }
}

TEST_CASE("communication hooks also get zeros") {
    CHECK(on_ranks(3, [](ProcessGroup& group) { train_longer(group, {}, true); }) == "");
}

TEST_CASE("a step on a global batch is bit-identical to DataParallel with masks") {
    constexpr int shards = 6, chunk = 4;
    const int rows = GENERATE(22, 24);  // 2 rows in the last shard, or 4
    for (const int size : {1, 2, 3})
        for (const bool synchronized : {false, true})  // operations over all shards in the middle of backward
            for (const std::size_t bucket : {std::size_t{0}, std::size_t{96}}) {
                CAPTURE(rows, size, synchronized, bucket);
                CHECK(on_ranks(size, [&](ProcessGroup& group) {
                          Heads net = seeded();
                          Masked masked = seeded<Masked>();
                          if (synchronized) {
                              convert_sync_batchnorm(net);
                              convert_sync_batchnorm(masked);
                          }
                          DistributedDataParallel model(net, group,
                                                        {.shards = shards,
                                                         .bucket_bytes = bucket,
                                                         .first_bucket_bytes = bucket,
                                                         .find_unused_parameters = true});
                          DataParallel truth(masked, Devices({Device::cpu(0)}), {.shards = shards});
                          SGD sgd(model, settings), other(truth, settings);
                          for (int step = 0; step < steps; ++step) {
                              const auto head = [&](int rank) { return step == 3 ? 0 : (rank + step) % 2; };
                              const bool differ = step != 3 && size > 1;
                              manual_seed(static_cast<std::uint64_t>(step));
                              const Tensor x = Tensor::randn({rows, 8}), y = Tensor::randn({rows, 5});
                              const StepLoss loss = model.step(sgd, std::tuple(x, head(group.rank())), y, mse_loss);
                              Values mask, inverse;
                              for (int row = 0; row < rows; ++row) {
                                  mask.push_back(head(row / chunk * size / shards) == 0 ? 1.0F : 0.0F);
                                  inverse.push_back(1 - mask.back());
                              }
                              const StepLoss wanted =
                                  truth.step(other,
                                             std::tuple(x, Tensor::from(mask, {rows, 1}),
                                                        Tensor::from(inverse, {rows, 1}), differ ? -1 : head(0)),
                                             y, mse_loss);
                              expect(loss.item() == wanted.item(), fmt::format("the loss of step {}", step));
                          }
                          model.engine().verify_replicas();
                          expect_close(values_of(model.module()), values_of(truth.module()), 0, "parameters");
                      }) == "");
            }
}

TEST_CASE("a rank without rows uses nothing") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded(), group, {.find_unused_parameters = true});
              SGD sgd(model, settings);
              const auto second = values_of(model.module())["second.weight"];
              manual_seed(1);
              const Tensor x = Tensor::randn({2, 8}), y = Tensor::randn({2, 5});
              const int head = group.rank() == 2 ? 1 : 0;
              (void)model.step(sgd, std::tuple(x, head), y, mse_loss).item();
              model.engine().verify_replicas();
              expect(values_of(model.module())["second.weight"] == second, "a parameter was updated");
          }) == "");
}

TEST_CASE("parameters used within no_sync count as used by the backward that reduces gradients") {
    for (const bool fast : {false, true})
        CHECK(on_ranks(3, [&](ProcessGroup& group) {
                  DistributedDataParallel model(
                      seeded(), group,
                      {.reduction = fast ? ReductionMode::fast : ReductionMode::root, .find_unused_parameters = true});
                  model.eval();
                  Heads net = seeded();
                  set_training(net, false);
                  for (int round = 0; round < 2; ++round) {  // the second one adds to the gradients of the first
                      {
                          const auto apart = model.no_sync();
                          backward(model, group.rank(), 0);  // heads 0, 1 and 0
                      }
                      expect(gradients_of(model.module())["second.weight"].empty() == (group.rank() != 1 && round == 0),
                             "no_sync communicated");
                      backward(model, group.rank(), 1);  // head 0
                      for (const int step : {0, 1}) reference_backward(net, group.size(), step);
                      expect_close(gradients_of(model.module()), gradients_of(net), 1e-5,
                                   fmt::format("round {}", round));
                  }
              }) == "");
}

TEST_CASE("a backward whose forward lacks later gradients of this rank is an error") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded(), group, {.find_unused_parameters = true});
              const auto apart = [&](int head) {
                  const auto scope = model.no_sync();
                  sum(model.forward(Rows(0, 0).x, head)).backward();
              };
              apart(0);
              const Tensor early = model.forward(Rows(0, 0).x, 0);
              apart(1);
              expect_throws<InvalidArgument>("in the order of the forwards", [&] { sum(early).backward(); });
              sum(model.forward(Rows(0, 0).x, 0)).backward();
          }) == "");
}

TEST_CASE("join: a rank without batches contributes zeros for parameters that the others use") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded(), group, {.find_unused_parameters = true});
              model.eval();
              SGD sgd(model, settings);
              const auto batches = [](int rank) { return rank == 1 ? 1 : steps; };
              model.join([&] {
                  for (int step = 0; step < batches(group.rank()); ++step) {
                      sgd.zero_grad();
                      backward(model, group.rank(), step);
                      sgd.step();
                  }
              });
              model.engine().verify_replicas();
              Heads net = seeded();
              set_training(net, false);
              SGD plain(net, settings);
              for (int step = 0; step < steps; ++step) {
                  plain.zero_grad();
                  for (int rank = 0; rank < 3; ++rank) {
                      if (step >= batches(rank)) continue;
                      const Rows rows(rank, step);
                      (loss_of(net.forward(rows.x, head_of(rank, step)), rows.y) * (1.0 / 3)).backward();
                  }
                  plain.step();
              }
              expect_close(values_of(model.module()), values_of(net), 1e-5, "parameters");
          }) == "");
}

TEST_CASE("without find_unused_parameters, unused parameters are an error that names them, and ranks must agree") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded(), group);
              expect_throws<InvalidArgument>(
                  fmt::format("rank {}: parameters that get no gradient: never.bias, never.weight", group.rank()),
                  [&] { static_cast<void>(model.forward(Rows(0, 0).x, 2)); });
              expect_throws<InvalidArgument>("rank 1 has ", [&] {
                  DistributedDataParallel(seeded(), group, {.find_unused_parameters = group.rank() == 1});
              });
          }) == "");
}

TEST_CASE("ranks do not wait for one that has left") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const auto train = [&] {
                  DistributedDataParallel model(seeded(), group, {.find_unused_parameters = true});
                  for (int i = 0; i < (group.rank() == 0 ? 1 : 2); ++i)
                      sum(model.forward(Rows(0, 0).x, group.rank())).backward();
                  model.synchronize();
              };
              if (group.rank() == 0)
                  train();
              else
                  expect_throws<CommunicationError>("rank 0 has left", train);
          }) == "");
}
