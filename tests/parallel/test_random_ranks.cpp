// Random tensors in forward under DDP: ranks have the bits of one process.
#include <string>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/random_nets.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class Model, class Net>
std::vector<float> trained(Model& model, const StepOptions& options) {
    Adam adam(model, {.lr = 0.02});
    (void)train_random<Net>(model, adam, 6, options);
    return flat_weights_of(model);
}

template <class Net>
void check_ranks(const char* what) {
    INFO(what);
    for (const int ranks : {1, 2, 3})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  for (const int parts : {1, 2}) {
                      const StepOptions options{.accumulation_steps = parts};
                      using Ranked = DistributedDataParallel<Net>;
                      using Single = DataParallel<Net>;
                      Ranked model(seeded_net<Net>(), group, {.shards = 8, .seed = 5});
                      Single alone(seeded_net<Net>(), Devices({Device::cpu(0)}), {.shards = 8, .seed = 5});
                      expect(trained<Ranked, Net>(model, options) == trained<Single, Net>(alone, options),
                             "the ranks are not bit-identical to one process");
                      model.engine().verify_replicas();
                  }
              }) == "");
}

}  // namespace

TEST_CASE("ranks draw the random numbers of one process") {
    check_ranks<Autoencoder>("autoencoder");
    check_ranks<Diffusion>("diffusion");
    check_ranks<Noisy>("noise on weights");
    check_ranks<Attending>("attention with dropout");
}
