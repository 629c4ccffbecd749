// GradScaler over several processes: every rank skips the same steps and has the same scale, bit-identical to one.
#include <fmt/format.h>

#include <limits>
#include <vector>

#include "lockstep/ops/grad_scaler.h"
#include "lockstep/ops/sgd.h"
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
std::vector<std::vector<float>> values_of(Model& model) {
    model.synchronize();
    std::vector<std::vector<float>> values;
    for (const NamedTensor& named : named_tensors(*model))
        values.push_back(named.member->tensor().to(DType::f32).template to_vector<float>());
    return values;
}

}  // namespace

TEST_CASE("a bad gradient skips exactly its step on every rank, and the scale follows PyTorch") {
    for (const int ranks : {2, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const auto& recorded : test::ordinary_scales())
                      for (const int parts : {1, 2}) {
                          const StepOptions how{.accumulation_steps = parts, .clip = {ClipGradNorm{.max_norm = 0.1}}};
                          DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group,
                                                                 {.shards = 4, .seed = 5, .bucket_bytes = 300});
                          SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
                          const std::string wrong = test::train_as_recorded(model, sgd, recorded, how);
                          expect(wrong.empty(), wrong);
                          model.engine().verify_replicas();
                          DataParallel<KinkNet> alone(test::seeded_kink_net(), Devices({Device::cpu(0)}),
                                                      {.shards = 4, .seed = 5});
                          SGD its(alone, {.lr = 0.05, .momentum = 0.9});
                          test::train_as_recorded(alone, its, recorded, how);
                          expect(values_of(model) == values_of(alone),
                                 "the ranks are not bit-identical to one process");
                      }
              }) == "");
}

TEST_CASE("in the manual form, one rank's gradients decide for all") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group);
              SGD sgd(model, {.lr = 0.05});
              GradScaler scaler({.growth_interval = 2});
              for (int i = 0; i < 4; ++i) {
                  const bool bad = i == 1;
                  sgd.zero_grad();
                  const Tensor x = test::kink_rows(10 * i + group.rank(), bad && group.rank() == 1);
                  scaler.scale(mean(model.forward(x))).backward();
                  expect(scaler.step(sgd) != bad, fmt::format("step {}", i));
                  scaler.update();
              }
              expect(scaler.get_scale() == 65536, "the scale after a bad step and two good ones");
              model.engine().verify_replicas();
          }) == "");
}

TEST_CASE("skipped steps are reported once per job, and a scale of 0 on every rank") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Warnings warnings;
              const Tensor x = Tensor::full({4, 6}, group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1);
              DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group);
              SGD sgd(model);
              const auto step = [&](GradScaler& scaler) {
                  return model.step(sgd, x, x, test::mean_of_outputs, {.scaler = &scaler});
              };
              const auto manual_step = [&](GradScaler& scaler) {
                  sgd.zero_grad();
                  scaler.scale(mean(model.forward(x))).backward();
                  scaler.step(sgd);
                  scaler.update();
              };
              GradScaler scaler, other;
              for (int i = 0; i < 60; ++i) {
                  const StepLoss loss = step(scaler);
                  if (group.rank() == 0 && i % 3 == 0) expect(loss.skipped(), "a step");  // ranks may read other losses
              }
              for (int i = 0; i < 60; ++i) manual_step(other);
              expect(warnings.texts().size() == (group.rank() == 0 ? 2 : 0), warnings.lines());
              const std::string zero = "the scale is 0 after 50 consecutive skipped steps";
              GradScaler least({.init_scale = 1e-30}), least_too({.init_scale = 1e-30});
              expect_throws<Error>(zero, [&] {
                  for (int i = 0; i < 60; ++i) step(least);
              });
              expect_throws<Error>(zero, [&] {
                  for (int i = 0; i < 60; ++i) manual_step(least_too);
              });
              expect(warnings.texts().size() == (group.rank() == 0 ? 2 : 0), warnings.lines());
              model.engine().verify_replicas();
          }) == "");
}

TEST_CASE("options that exclude a scaler are rejected on every rank") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Tensor x = test::kink_rows(0);
              GradScaler scaler;
              DistributedDataParallel<KinkNet> hooked(test::seeded_kink_net(), group);
              hooked.register_comm_hook(group, power_sgd_hook());
              SGD its(hooked);
              expect_throws<InvalidArgument>("a GradScaler cannot be combined with a communication hook", [&] {
                  hooked.step(its, x, x, test::mean_of_outputs, {.scaler = &scaler});
              });
              DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group);
              SGD sgd(model);
              GradScaler own({.init_scale = group.rank() == 0 ? 2.0 : 4.0});
              expect_throws<Error>("compute gradients of different parameters", [&] {
                  model.step(sgd, x, x, test::mean_of_outputs, {.scaler = &own});
                  model.synchronize();
              });
          }) == "");
}
