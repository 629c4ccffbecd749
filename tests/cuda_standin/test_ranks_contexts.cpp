// A context takes half a gigabyte of a GPU: every rank has exactly one, on its own GPU.
#include "lockstep/tests/cuda_standin/ranks_training.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("a rank has a context on its own GPU only") {
    if (!has_gpus(3, "this")) return;
    for (const std::string& backend : backends_here(2)) {
        INFO(backend);
        CHECK(on_gpus({.backend = backend, .share = true}, [](ProcessGroup& group) {
                  const int own = group.rank() + 1;  // neither is the first one, the initial device of threads
                  const Device device = Device::cuda(own * (device_count(DeviceKind::cuda) / test::gpu_count()));
                  const Tensor x = Tensor::full({1000}, 1, DType::f32, device);
                  group.all_reduce(x);
                  group.all_reduce_async(x).wait();
                  Rank<test::Normed> rank(group, {.shards = 2, .bucket_bytes = 20000}, device);
                  rank.run(3);
                  Lines lines;
                  const auto contexts = test::contexts();
                  if (!contexts.contains(own)) lines.push_back("no context on its own GPU");
                  for (const auto& [gpu, call] : contexts)
                      if (gpu != own) lines.push_back("a context on GPU " + std::to_string(gpu) + " by " + call);
                  return lines;
              }) == "");
    }
}
