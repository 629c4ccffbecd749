// Clipping and skipped steps over several processes: bit-identical to one.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/training.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;
using test::KinkNet;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// With a frozen parameter and an unused layer.
struct Net : KinkNet {
    Linear unused{4, 4};
    LOCKSTEP_MEMBERS(first, norm, second, kink, dropout, unused)
};

Net seeded() {
    manual_seed(3);
    Net net;
    net.second.bias->tensor().requires_grad_(false);
    return net;
}

struct Result {
    std::vector<std::vector<float>> values;
    std::vector<double> norms;
    std::vector<bool> skipped;
    std::uint64_t steps = 0;
    bool operator==(const Result&) const = default;
};

/// Four steps, of which the second is skipped: one rank has the row that spoils it.
template <class Model>
Result train(Model& model, const StepOptions& how) {
    SGD optimizer(model, {.lr = 0.5, .momentum = 0.9});
    optimizer.add_group({"second"}, {.lr = 0.2, .momentum = 0.9});
    const bool has_norm = std::holds_alternative<ClipGradNorm>(how.clip.front());
    Result result;
    for (int i = 0; i < 4; ++i) {
        const Tensor x = test::kink_rows(i, i == 1);
        const StepLoss loss = model.step(optimizer, x, x, test::mean_of_outputs, how);
        if (has_norm) result.norms.push_back(i == 1 ? 0 : loss.grad_norm());
        result.skipped.push_back(loss.skipped());
    }
    result.steps = model.engine().steps_done();
    for (const NamedTensor& named : named_tensors(*model))
        result.values.push_back(named.member->tensor().to(DType::f32).template to_vector<float>());
    return result;
}

const std::vector<std::vector<GradientClip>>& all_clips() {
    static const std::vector<std::vector<GradientClip>> all{
        {ClipGradNorm{.max_norm = 0.5, .norm_type = 1}},
        {ClipGradNorm{.max_norm = 0.1}},
        {ClipGradNorm{.max_norm = 0.1, .norm_type = 3.5}},
        {ClipGradNorm{.max_norm = 0.05, .norm_type = infinity}},
        {ClipGradNorm{.max_norm = 0.1, .group = 1}, ClipGradNorm{.max_norm = 0.2, .norm_type = 3.5, .group = 0}},
        {ClipGradValue{.clip_value = 0.01}},
        {ClipGradValue{.clip_value = 0.01, .group = 1}, ClipGradNorm{.max_norm = 0.1}},
    };
    return all;
}

DistributedDataParallelOptions options() {
    return {.shards = 8, .seed = 5, .bucket_bytes = 300, .find_unused_parameters = true};
}

/// Forward and backward of a manual step, with the rows of one rank.
template <class Model>
void go_back(Model&& model, int number) {
    const Tensor output = model.forward(test::kink_rows(number));
    mean(output).backward();
}

}  // namespace

TEST_CASE("ranks clip and skip like one process, with frozen and unused parameters") {
    for (const int ranks : {1, 2, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const auto& clip : all_clips()) {
                      const StepOptions how{.clip = clip, .skip_nonfinite = true};
                      DistributedDataParallel<Net> model(seeded(), group, options());
                      const Result found = train(model, how);
                      DataParallel<Net> alone(seeded(), Devices({Device::cpu(0)}), {.shards = 8, .seed = 5});
                      const auto number = &clip - all_clips().data();
                      expect(found == train(alone, how),
                             fmt::format("clip {}: the ranks are not bit-identical to one process", number));
                      DataParallel<Net> unclipped(seeded(), Devices({Device::cpu(0)}), {.shards = 8, .seed = 5});
                      const StepOptions no_limit{.clip = {ClipGradNorm{.max_norm = 1e9}}, .skip_nonfinite = true};
                      expect(found.values != train(unclipped, no_limit).values,
                             fmt::format("clip {} has no effect", number));
                      expect(found.skipped == std::vector<bool>{false, true, false, false}, "another step was skipped");
                      expect(found.steps == 3, "a skipped step was counted");
                      model.engine().verify_replicas();
                  }
              }) == "");
}

TEST_CASE("a skipped step leaves weights and all state unchanged on every rank") {
    using Model = DistributedDataParallel<Net>;
    for (const int ranks : {2, 3})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const auto& named : test::all_optimizers<Model>()) {
                      Model model(seeded(), group, options()), straight(seeded(), group, options());
                      const auto optimizer = named.make(model), other = named.make(straight);
                      const auto step = [&](Model& which, Optimizer& its, int number, bool spoiled) {
                          const Tensor x = test::kink_rows(number, spoiled);
                          return which.step(its, x, x, test::mean_of_outputs, {.skip_nonfinite = true});
                      };
                      const auto check = [&](bool good, const char* what) {
                          expect(good, fmt::format("{}: {}", named.name, what));
                      };
                      check(!step(model, *optimizer, 0, false).skipped(), "a good step was skipped");
                      const auto before = test::whole_state(model, *optimizer);
                      check(step(model, *optimizer, 1, true).skipped(), "a bad step was not skipped");
                      check(test::whole_state(model, *optimizer) == before, "a skipped step changed something");
                      model.engine().verify_replicas();
                      step(model, *optimizer, 2, false);
                      for (const int number : {0, 2}) step(straight, *other, number, false);
                      const auto after = test::whole_state(model, *optimizer);
                      check(after == test::whole_state(straight, *other), "the next step differs");
                      check(after != before, "the next step changed nothing");
                  }
              }) == "");
}

TEST_CASE("in the manual form, ranks clip the mean of their gradients identically, for the model or a group") {
    for (const int ranks : {1, 2, 4})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const auto& clips : all_clips()) {
                      DistributedDataParallel<Net> model(seeded(), group, {.find_unused_parameters = true});
                      model.eval();
                      Net net = seeded();
                      set_training(net, false);
                      SGD sgd(model, {.lr = 0.5}), plain(net, {.lr = 0.5});
                      for (SGD* one : {&sgd, &plain}) one->add_group({"second"}, {.lr = 0.2});
                      for (int step = 0; step < 2; ++step) {
                          sgd.zero_grad();
                          plain.zero_grad();
                          go_back(model, 10 * step + group.rank());
                          for (int rank = 0; rank < group.size(); ++rank)
                              (mean(net.forward(test::kink_rows(10 * step + rank))) * (1.0 / group.size())).backward();
                          for (const GradientClip& clip : clips) {
                              if (const auto* norm = std::get_if<ClipGradNorm>(&clip)) {
                                  const double found = clip_grad_norm_(sgd, *norm).item();
                                  const double expected = clip_grad_norm_(plain, *norm).item();
                                  expect(std::abs(found - expected) <= 1e-5 * expected,
                                         fmt::format("the norm is {}, not {}", found, expected));
                              } else {
                                  clip_grad_value_(sgd, std::get<ClipGradValue>(clip));
                                  clip_grad_value_(plain, std::get<ClipGradValue>(clip));
                              }
                          }
                          sgd.step();
                          plain.step();
                      }
                      model.engine().verify_replicas();
                      const auto found = named_tensors(*model), expected = named_tensors(net);
                      for (std::size_t k = 0; k < found.size(); ++k) {
                          const auto a = found[k].member->tensor().to(DType::f64).to_vector<double>(),
                                     b = expected[k].member->tensor().to(DType::f64).to_vector<double>();
                          for (std::size_t i = 0; i < a.size(); ++i)
                              expect(std::abs(a[i] - b[i]) < 1e-5,
                                     fmt::format("{} [{}] is {}, not {}", found[k].name, i, a[i], b[i]));
                      }
                  }
              }) == "");
}

TEST_CASE("a non-finite norm is an error on all ranks and changes nothing on any") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel<Net> model(seeded(), group, options());
              SGD sgd(model, {.lr = 0.1, .momentum = 0.9});
              const auto step = [&](bool spoiled) {
                  const Tensor x = test::kink_rows(0, spoiled);
                  return model.step(sgd, x, x, test::mean_of_outputs,
                                    {.clip = {ClipGradNorm{.max_norm = 1, .error_if_nonfinite = true}}});
              };
              static_cast<void>(step(false).item());
              const auto before = test::whole_state(model, sgd);
              expect_throws<StepError>("the norm of the gradients is not finite",
                                       [&] { static_cast<void>(step(true).item()); });
              expect(test::whole_state(model, sgd) == before, "the step changed something");
          }) == "");
}

TEST_CASE("ranks with different clipping get an error") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              DistributedDataParallel<KinkNet> model(test::seeded_kink_net(), group);
              SGD optimizer(model);
              const Tensor x = Tensor::full({4, 6}, 1);
              const double max_norm = group.rank() == 0 ? 1 : 2;
              expect_throws<Error>("compute gradients of different parameters", [&] {
                  model.step(optimizer, x, x, test::mean_of_outputs, {.clip = {ClipGradNorm{.max_norm = max_norm}}});
                  model.synchronize();
              });
          }) == "");
}
