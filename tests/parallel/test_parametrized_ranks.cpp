// Buffers that forward writes, under DDP: ranks have the bits of one process.
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/parametrized_net.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::vector<float> after_parametrized_steps(auto& model) {
    SGD sgd(model, {.lr = 0.1});
    for (int step = 0; step < 3; ++step)
        (void)model.step(sgd, parametrized_rows(step), Tensor::zeros({6, 2}), mse_loss).item();
    std::vector<float> all;
    for (const NamedTensor& named : named_tensors(*model))
        for (const float value : named.member->tensor().to(Device::host()).to_vector<float>()) all.push_back(value);
    return all;
}

}  // namespace

TEST_CASE("weights and singular vectors of parametrized layers have the bits of one process on 2 ranks") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              manual_seed(8);
              const ParametrizedNet net;
              DistributedDataParallel<ParametrizedNet> model(net, group, {.shards = 3});
              DataParallel<ParametrizedNet> alone(net, Devices({Device::cpu(0)}), {.shards = 3});
              expect(after_parametrized_steps(model) == after_parametrized_steps(alone),
                     "a rank is not bit-identical to one process");
          }) == "");
}
