// A context takes half a gigabyte of a card: every rank has one, on its own.
#include "lockstep/tests/cuda_standin/ranks_training.h"

using namespace lockstep;
using namespace lockstep::testing;

TEST_CASE("a rank has a context on its own GPU and on no other") {
    for (const std::string& backend : backends_here()) {
        INFO(backend);
        CHECK(on_gpus({.backend = backend, .share = true}, [](ProcessGroup& group) {
                  const int own = group.rank() + 1;  // neither is the first one, which threads begin with
                  const Tensor x = Tensor::full({1000}, 1, DType::f32, Device::cuda(own));
                  group.all_reduce(x);
                  group.all_reduce_async(x).wait();
                  Rank<test::Normed> rank(group, {.shards = 2, .bucket_bytes = 20000}, Device::cuda(own));
                  rank.run(3);
                  Lines lines;
                  const auto contexts = standin::contexts();
                  if (!contexts.contains(own)) lines.push_back("no context on its own GPU");
                  for (const auto& [device, call] : contexts)
                      if (device != own)
                          lines.push_back("a context on device " + std::to_string(device) + " by " + call);
                  return lines;
              }) == "");
    }
}
