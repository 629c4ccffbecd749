// GPUs on which a process creates contexts, on the stand-in or real ones.
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::in_a_process;
using test::on_standin;
using test::only_on;
using test::Trained;

// Separate processes, because contexts are permanent.
TEST_CASE("training on CPU devices creates no context on the machine's GPUs", "[.processes]") {
    CHECK(in_a_process([] {
              if (device_count(DeviceKind::cuda) == 0) return 2;
              Trained<test::Normed> trained(Devices{Device::cpu(0), Device::cpu(1)}, {});
              trained.run(3, 8);
              const auto pinned = Buffer::allocate_pinned(1000);
              synchronize_all();
              return only_on({});
          }) == 0);
}

TEST_CASE("device and peer access queries create no context", "[.processes]") {
    CHECK(in_a_process([] {
              const int count = device_count(DeviceKind::cuda);
              for (int i = 0; i < count; ++i) {
                  const DeviceInfo info = device_info(Device::cuda(i));
                  if (info.name.empty() || info.total_memory == 0 || info.free_memory) return 2;
                  for (int j = 0; j < count; ++j)
                      if (!peer_access(Device::cuda(i), Device::cuda(j)) && on_standin()) return 3;
              }
              if (only_on({}) != 0) return 1;
              const Tensor x = Tensor::zeros({4}, DType::f32, Device::cuda(2));
              const auto free = device_info(Device::cuda(2)).free_memory;
              return free && *free > 0 ? only_on({Device::cuda(2)}) : 4;
          }) == 0);
}

TEST_CASE("training on some GPUs creates contexts on these only", "[.processes]") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        CHECK(in_a_process([&] {
                  {
                      Trained<test::Normed> trained(Devices{Device::cuda(1), Device::cuda(3)},
                                                    {.shards = 4, .reduction = reduction});
                      trained.run(3, 8);
                      release_cached_memory(Device::cuda(1));
                  }
                  synchronize_all();
                  return only_on({Device::cuda(1), Device::cuda(3)});
              }) == 0);
}
