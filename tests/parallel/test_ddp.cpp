// DistributedDataParallel: PyTorch's manual step, accumulated gradients, properties that must be equal on all ranks,
// and the errors on the others when one cannot continue. Ranks are forked; each returns its errors.
#include <fmt/format.h>
#include <malloc.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/double_precision.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;
using Lines = std::vector<std::string>;

namespace {

struct Net {
    Linear first{6, 5}, second{5, 3};
    bool both = true;
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) { return both ? second(relu(first(x))) : first(x); }
};

struct Other {
    Linear first, second{5, 3};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) { return second(first(x)); }
};

bool gloo_built_in() {
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.name == "gloo") return backend.present;
    return false;
}

/// Rows of all ranks, the same on each: rank r has [6 * r, 6 * r + 6).
struct Data {
    Tensor x, y;
    explicit Data(int ranks) {
        manual_seed(21);
        x = Tensor::randn({6 * ranks, 6});
        y = Tensor::randn({6 * ranks, 3});
    }
};

Net seeded(std::uint64_t seed) {
    manual_seed(seed);
    return Net{};
}

Tensor loss_of(const Tensor& output, const Tensor& target) {
    const Tensor difference = output - target;
    return sum(difference * difference) * (1.0 / static_cast<double>(target.numel()));
}

std::vector<std::vector<float>> gradients(Net& net) {
    std::vector<std::vector<float>> result;
    for (const NamedTensor& named : named_tensors(net))
        result.push_back(named.member->tensor().grad().to_vector<float>());
    return result;
}

/// Gradients of the whole batch on one plain module, `times` over.
std::vector<std::vector<float>> expected_gradients(const Data& data, int times) {
    Net net = seeded(1);
    for (int i = 0; i < times; ++i) loss_of(net.forward(data.x), data.y).backward();
    return gradients(net);
}

void expect_close(const std::vector<std::vector<float>>& found, const std::vector<std::vector<float>>& wanted,
                  const std::string& what) {
    for (std::size_t p = 0; p < wanted.size(); ++p)
        for (std::size_t i = 0; i < wanted[p].size(); ++i)
            expect(std::abs(found[p][i] - wanted[p][i]) <= 1e-5F * (1 + std::abs(wanted[p][i])),
                   fmt::format("{}: gradient {} of parameter {} is {}, not {}", what, i, p, found[p][i], wanted[p][i]));
}

}  // namespace

TEST_CASE("an error on one rank is reported with its location") {
    constexpr int here = __LINE__;
    const std::string report = on_ranks(2, [](ProcessGroup& group) {
        expect(true, "right");
        if (group.rank() == 1) expect(false, "wrong");
        if (group.rank() == 0) expect_throws<Error>("other", [] { throw Error("one"); });
    });
    const std::string place = "parallel/test_ddp.cpp:";
    CHECK(report == "rank 0: " + place + std::to_string(here + 4) +
                        ": 'one' does not contain 'other'\nrank 1: " + place + std::to_string(here + 3) + ": wrong\n");
}

TEST_CASE("the manual step leaves the mean of the ranks' gradients, that of the whole batch") {
    for (const int size : {1, 2, 3}) {
        INFO(size << " ranks");
        CHECK(on_ranks(size, [&](ProcessGroup& group) {
                  const Data data(size);
                  const int own = 6 * group.rank();
                  const Tensor x = data.x.slice(0, own, own + 6), y = data.y.slice(0, own, own + 6);
                  DistributedDataParallel model(seeded(1), group);
                  const Tensor output = model.forward(x);
                  expect(output.size(0) == 6, "the output does not have this rank's rows");
                  loss_of(output, y.to(output.device())).backward();
                  expect_close(gradients(model.module()), expected_gradients(data, 1), "one backward");
                  loss_of(model.forward(x), y.to(output.device())).backward();
                  expect_close(gradients(model.module()), expected_gradients(data, 2), "two backwards");

                  SGD sgd(model, {.lr = 0.1});
                  sgd.step();
                  model.engine().verify_replicas();
              }) == "");
    }
}

TEST_CASE("no_sync: gradients stay local until the next backward outside it") {
    const int size = GENERATE(2, 4);  // on one host, and on two
    if (size == 4 && !gloo_built_in()) return;
    CHECK(on_ranks(
              size,
              [](ProcessGroup& group) {
                  const Data data(group.size());
                  const int own = 6 * group.rank();
                  const Tensor x = data.x.slice(0, own, own + 6), y = data.y.slice(0, own, own + 6).to(Device::cpu(0));
                  DistributedDataParallel model(seeded(1), group);
                  {
                      const auto alone = model.no_sync();
                      loss_of(model.forward(x), y).backward();
                      Net single = seeded(1);
                      loss_of(single.forward(x), y.to(Device::host())).backward();
                      expect_close(gradients(model.module()), gradients(single), "within no_sync");
                  }
                  const auto before = model.forward(x);  // its backward runs later
                  loss_of(before, y).backward();
                  expect_close(gradients(model.module()), expected_gradients(data, 2), "outside again");
                  loss_of(model.forward(x), y).backward();
                  expect_close(gradients(model.module()), expected_gradients(data, 3), "a third one");

                  SGD sgd(model, {.lr = 0.1});
                  sgd.zero_grad();
                  const Tensor early = model.forward(x);
                  {
                      const auto alone = model.no_sync();
                      loss_of(model.forward(x), y).backward();
                  }
                  expect_throws<InvalidArgument>("in the order of the forwards", [&] { loss_of(early, y).backward(); });
              },
              no_limit, size == 4 ? 2 : 0) == "");
}

TEST_CASE("ranks start identical, and differences between them are rejected on all ranks by name") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded(static_cast<std::uint64_t>(group.rank())), group);
              model.engine().verify_replicas();
              Net first = seeded(0);
              expect(model->first.weight->to_vector<float>() == first.first.weight->to_vector<float>(),
                     "the parameters are not those of rank 0");

              expect_throws<InvalidArgument>(
                  "rank 2 has first.bias f32 (4,) where rank 0 has first.bias f32 (5,)", [&] {
                      DistributedDataParallel(Other{Linear{6, group.rank() == 2 ? 4 : 5}}, group);
                  });
              expect_throws<InvalidArgument>("rank 1 has 5 shards", [&] {
                  DistributedDataParallel(seeded(1), group, {.shards = group.rank() == 1 ? 5 : 4});
              });
              expect_throws<InvalidArgument>(
                  "rank 1 has 3 shards, 0 and 0 bytes per bucket, not "
                  "deterministic, direct convolutions",
                  [&] {
                      const auto direct = ConvAlgorithm::direct, any = ConvAlgorithm::automatic;
                      DistributedDataParallel(seeded(1), group, {.convolution = group.rank() == 1 ? direct : any});
                  });
              if (group.rank() == 1) {
                  const NoGrad no_grad;
                  model->second.bias->tensor().fill_(7);
              }
              expect_throws<DeviceError>("rank 1 differs from that of rank 0 in second.bias",
                                         [&] { model.engine().verify_replicas(); });
              DistributedDataParallel apart(seeded(static_cast<std::uint64_t>(group.rank())), group,
                                            {.init_sync = false});
              expect_throws<DeviceError>("differs from that of rank 0", [&] { apart.engine().verify_replicas(); });
          }) == "");
}

TEST_CASE("parameters without a gradient are named, or ignored on request") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Tensor x = Tensor::randn({4, 6});
              Net net = seeded(1);
              net.both = false;
              DistributedDataParallel strict(net, group);
              expect_throws<InvalidArgument>("parameters that get no gradient: second",
                                             [&] { static_cast<void>(strict.forward(x)); });
              DistributedDataParallel finds(net, group, {.find_unused_parameters = true});
              sum(finds.forward(x)).backward();
              expect(finds->first.weight->grad().defined(), "a used parameter has no gradient");
              expect(!finds->second.weight->grad().defined(), "an unused parameter has a gradient");
          }) == "");
}

TEST_CASE("static_graph: ranks that use different parameters end with an error that explains it") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              Net net = seeded(1);
              net.both = group.rank() == 0;
              DistributedDataParallel model(net, group, {.static_graph = true});
              expect_throws<CommunicationError>("compute gradients of different parameters", [&] {
                  sum(model.forward(Tensor::randn({4, 6}))).backward();
                  model.synchronize();
              });
          }) == "");
}

TEST_CASE("a step that one rank must refuse is refused on all ranks, and training continues") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              DistributedDataParallel model(seeded(1), group);
              SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
              const auto step = [&](std::int64_t target) {
                  manual_seed(4);
                  const Tensor x = Tensor::randn({6, 6});
                  const Tensor targets =
                      Tensor::from<std::int64_t>({0, 1, 2, 0, 1, target}, {6});  // the last row: rank 2
                  return model.step(sgd, x, targets, cross_entropy);
              };
              step(0);
              model.synchronize();
              const auto before = model->first.weight->to_vector<float>();
              const StepLoss bad = step(17);
              expect_throws<StepError>("target 17 in row 5 of the batch is out of range (shard 2, rank 2)",
                                       [&] { static_cast<void>(bad.item()); });
              expect(model->first.weight->to_vector<float>() == before, "the refused step changed a parameter");
              expect(model.engine().steps_done() == 1, "the refused step was counted");
              expect(std::isfinite(step(1).item()), "the next step has no loss");
              expect(model->first.weight->to_vector<float>() != before, "the next step changed nothing");
              model.engine().verify_replicas();
          }) == "");
}

TEST_CASE("features that several processes do not support are rejected") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              expect_throws<InvalidArgument>("slice-wise", [&] {
                  DistributedDataParallel(seeded(1), group, {.reduction = ReductionMode::slice_wise});
              });
          }) == "");
}

TEST_CASE("if a rank is killed during training, the others end with an error that names it") {
    const int last_step = GENERATE(0, 20);
    const test::TemporaryDirectory place;
    ForkedRanks ranks(3, [&](int rank) {
        ::mallopt(M_PERTURB, 90);  // memory that was not received contains garbage
        ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                                           .rank = rank,
                                           .world_size = 3,
                                           .time_limit = no_limit},
                            .time_limit = no_limit});
        DistributedDataParallel model(seeded(1), group);
        SGD sgd(model, {.lr = 0.01});
        try {
            for (int step = 0;; ++step) {
                if (rank == 1 && step == last_step) ::raise(SIGKILL);
                model.step(sgd, Tensor::zeros({6, 6}), Tensor::zeros({6}, DType::i64), cross_entropy);
            }
        } catch (const CommunicationError& error) {
            expect(contains(error.what(), "rank 1 has died"), error.what());
        }
        expect_throws<CommunicationError>("", [&] {
            for (int step = 0; step < 3; ++step)
                model.step(sgd, Tensor::zeros({6, 6}), Tensor::zeros({6}, DType::i64), cross_entropy);
        });
        return Lines();
    });
    CHECK(joined(ranks.finish()) == "rank 1: ended by signal 9\n");
}

TEST_CASE("an f64 model has f64 settings and loss") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const F64Data data;
              const F64Training expected(data);
              DistributedDataParallel<F64Regression> model(data.net, group);
              SGD sgd(model, f64_settings);
              std::vector<double> losses;
              for (int step = 0; step < F64Training::steps; ++step)
                  losses.push_back(model.step(sgd, data.x, data.y, mse_loss).item());
              const double off_loss = largest_difference(losses, expected.losses);
              const double off = largest_difference(f64_parameters_of(model.module()), expected.parameters);
              expect(off_loss < f64_rounding && off < f64_rounding,
                     fmt::format("losses are off by {}, parameters by {}", off_loss, off));
          }) == "");
}

namespace {
struct Scaled {
    Linear fc{6, 3};
    double scale = 1;
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) { return fc(x) * scale; }
};
}  // namespace

TEST_CASE("host state that changes behind a cached program, on all ranks or one, throws on all and none waits") {
    for (const bool on_all : {true, false})
        for (const bool manual : {true, false})
            CHECK(on_ranks(3, [&](ProcessGroup& group) {
                      DistributedDataParallel<Scaled> model(Scaled{}, group);
                      SGD sgd(model, {.lr = 0.01});
                      const Data data(3);
                      const auto step = [&] {
                          if (manual)
                              loss_of(model(data.x), data.y.to(Device::cpu(0))).backward();
                          else
                              model.step(sgd, data.x, data.y, mse_loss);
                      };
                      for (int i = 0; i < 10; ++i) step();  // the next repeat is checked
                      model.synchronize();
                      if (on_all || group.rank() == 1) model->scale = 2;
                      expect_throws<Error>("had the attributes (1, 0) and has (2, 0)", [&] {
                          for (int i = 0; i < 4; ++i) step();
                          model.synchronize();
                      });
                  }) == "");
}

TEST_CASE("backward after an optimizer's step is rejected on every rank, and training continues") {
    CHECK(on_ranks(2, [&](ProcessGroup& group) {
              DistributedDataParallel<Net> model(seeded(3), group);
              SGD sgd(model, {.lr = 0.01});
              const Data data(1);
              loss_of(model(data.x), data.y.to(Device::cpu(0))).backward();
              const Tensor loss = loss_of(model(data.x), data.y.to(Device::cpu(0)));
              sgd.step();
              expect_throws<InvalidArgument>("backward: second.weight was changed after the forward that needs it",
                                             [&] { loss.backward(); });
              sgd.zero_grad();
              loss_of(model(data.x), data.y.to(Device::cpu(0))).backward();
              sgd.step();
              model.engine().verify_replicas();
          }) == "");
}

TEST_CASE("backward after a collective wrote to a weight is rejected, also for parts, views and messages") {
    CHECK(on_ranks(2, [&](ProcessGroup& group) {
              const Data data(1);
              const auto weight = [](auto& model) { return model->second.weight->detach(); };
              const std::vector<std::pair<std::string, std::function<void(const Tensor&)>>> writes{
                  {"all_reduce", [&](const Tensor& w) { group.all_reduce(w); }},
                  {"all_reduce of a row", [&](const Tensor& w) { group.all_reduce(w.select(0, 1)); }},
                  {"all_reduce of a column", [&](const Tensor& w) { group.all_reduce(w.select(1, 1)); }},
                  {"broadcast", [&](const Tensor& w) { group.broadcast(w, 0); }},
                  {"all_gather",
                   [&](const Tensor& w) {
                       group.all_gather({w, Tensor::zeros(w.shape())}, Tensor::full(w.shape(), 0.5));
                   }},
                  {"reduce_scatter",
                   [&](const Tensor& w) {
                       group.reduce_scatter(w, {w.clone(), Tensor::zeros(w.shape())});
                   }},
                  {"a message",
                   [&](const Tensor& w) {
                       const auto sent = group.isend(Tensor::full(w.shape(), 2), 1 - group.rank());
                       group.recv(w, 1 - group.rank());
                       sent.wait();
                   }},
              };
              const auto check = [&](auto& model, const std::string& kind) {
                  for (const auto& [what, write] : writes) {
                      const Tensor loss = loss_of(model(data.x), data.y.to(Device::cpu(0)));
                      write(weight(model));
                      expect_throws<InvalidArgument>(
                          "backward: second.weight was changed after the forward that needs it", [&] {
                              loss.backward();
                              throw Error(kind + ", " + what + ": backward accepts it");
                          });
                      loss_of(model(data.x), data.y.to(Device::cpu(0))).backward();  // still usable
                  }
              };
              DistributedDataParallel<Net> several(seeded(3), group);
              check(several, "DistributedDataParallel");
              DataParallel<Net> single(seeded(3), Devices({Device::cpu(0)}));
              check(single, "DataParallel");
              // A collective that only reads the weight changes nothing.
              const Tensor loss = loss_of(several(data.x), data.y.to(Device::cpu(0)));
              const Tensor copy = Tensor::zeros({2, 3, 5});
              group.all_gather(copy, weight(several));
              loss.backward();
          }) == "");
}
