// Rows of all shards in forward, on several ranks.
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/contrastive.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("ranks see the rows of all ranks") {
    for (const int size : {2, 3}) {
        INFO(size << " ranks");
        CHECK(on_ranks(size, [&](ProcessGroup& group) {
                  manual_seed(44);
                  const Contrastive net;
                  const Batch batch(6 * size);
                  const std::vector<float> all = batch.x.to_vector<float>();
                  const int own = 6 * group.rank();
                  const Tensor x = batch.x.slice(0, own, own + 6), labels = batch.labels.slice(0, own, own + 6);
                  const std::vector<double> start = values_of(net);
                  const std::vector<double> expected = gradient_in_double(start, all);
                  const auto check = [&](const std::vector<double>& found, const char* what) {
                      for (std::size_t i = 0; i < found.size(); ++i)
                          expect(std::abs(found[i] - expected[i]) < 3e-6,
                                 fmt::format("{}: gradient {} is {}, not {}", what, i, found[i], expected[i]));
                  };
                  // `step` takes the whole batch, `forward` the rows of the rank.
                  DistributedDataParallel model(net, group);
                  SGD sgd(model, {.lr = 1});
                  const double loss = model.step(sgd, batch.x, batch.labels, cross_entropy).item();
                  expect(std::abs(loss - loss_in_double(start, all)) < 1e-5, fmt::format("the loss is {}", loss));
                  std::vector<double> moved = values_of(model.module());
                  for (std::size_t i = 0; i < moved.size(); ++i) moved[i] = start[i] - moved[i];
                  check(moved, "step");

                  DistributedDataParallel manual(net, group);
                  const Tensor output = manual.forward(x);
                  expect(output.shape() == Shape{6, 6 * size}, "the output has the shape " + output.shape().str());
                  cross_entropy(output, labels.to(output.device())).backward();
                  std::vector<double> gradients;
                  for (const Tensor& tensor : {manual.module().fc.weight.tensor(), manual.module().fc.bias->tensor()})
                      for (const float value : tensor.grad().to_vector<float>())
                          gradients.push_back(static_cast<double>(value));
                  check(gradients, "backward");
              }) == "");
    }
}
