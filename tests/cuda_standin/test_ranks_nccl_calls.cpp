// NCCL and CUDA calls of the nccl backend, counted by the stand-in: memory moved between devices.
#include "lockstep/tests/cuda_standin/ranks_training.h"
#include "lockstep/tests/cuda_standin/standin.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("nccl transfers GPU memory without the host and copies host memory through the GPU") {
    CHECK(on_gpus("nccl", 2, [](ProcessGroup& group) {
              const Tensor x = Tensor::full({1000}, 1, DType::f32, Device::cuda(0)), host = Tensor::full({1000}, 2);
              Stream::of(Device::cuda(0)).synchronize();
              standin::reset_counters();
              group.all_reduce(x);
              const standin::Counters moved = standin::counters();
              group.all_reduce(host);
              Lines lines;
              if (!moved.pairs.empty()) lines.push_back("there were copies");
              if (moved.devices[0].launches.count("ncclAllReduce") == 0) lines.push_back("NCCL was not called");
              if (standin::counters().devices[0].launches != moved.devices[0].launches)
                  lines.push_back("NCCL was called for host memory");
              if (x.to_vector<float>() != std::vector<float>(1000, 2)) lines.push_back("wrong values on the GPU");
              if (host.to_vector<float>() != std::vector<float>(1000, 4)) lines.push_back("wrong values on the host");
              return lines;
          }) == "");
}

TEST_CASE("training over nccl never copies gradients to the host") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::fast})
        CHECK(on_gpus("nccl", 2, [&](ProcessGroup& group) {
                  const Images images(16);
                  Rank<test::Small> rank(group, {.shards = 2, .reduction = reduction});
                  rank.step(images, 0, 16);
                  rank.model.synchronize();
                  standin::reset_counters();
                  rank.step(images, 0, 16);
                  rank.model.synchronize();
                  const standin::Counters moved = standin::counters();
                  const auto to_host = moved.pairs.find({0, standin::kHost});
                  Lines lines;
                  // Only fingerprints and status words; the gradients have 86 kB.
                  if (to_host != moved.pairs.end() && to_host->second.bytes > 2000)
                      lines.push_back(std::to_string(to_host->second.bytes) + " bytes were copied to the host");
                  const auto& launches = moved.devices[0].launches;
                  if (launches.count(reduction == ReductionMode::fast ? "ncclAllReduce" : "ncclAllGather") == 0)
                      lines.push_back("NCCL was not called");
                  return lines;
              }) == "");
}
