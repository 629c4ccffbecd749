// Operations between processes on tensors of GPUs.
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/cuda_standin/ranks.h"
#include "lockstep/tests/parallel/comm/group_exercise.h"

using namespace lockstep;
using namespace lockstep::test;
using Lines = std::vector<std::string>;

TEST_CASE("every operation on GPU tensors, contiguous and strided, blocking and non-blocking") {
    for (const std::string& backend : backends_here(2))
        for (const int delay_us : {0, 100}) {
            INFO(backend << ", delays " << delay_us);
            CHECK(on_gpus(backend, 2, [&](ProcessGroup& group) {
                      test::set_delays(static_cast<std::uint64_t>(group.rank()) + 1, delay_us);
                      Lines lines = exercise_group(group, Device::cuda(0));
                      const Lines more = exercise_group_messages(group, Device::cuda(0));
                      lines.insert(lines.end(), more.begin(), more.end());
                      return lines;
                  }) == "");
        }
}

TEST_CASE("an operation runs after earlier work of the GPU, and later work sees its result") {
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              test::set_delays(7, 2000);
              const Tensor x = Tensor::zeros({1000}, DType::f32, Device::cuda(0));
              x.fill_(group.rank() + 1);
              const ProcessGroup::Work work = group.all_reduce_async(x);
              const Tensor apart = Tensor::full({1000}, 1, DType::f32, Device::cuda(0)) * 5;  // while it is in flight
              work.wait();
              const Tensor both = x + apart;
              return both.to_vector<float>() == std::vector<float>(1000, 8) ? Lines() : Lines{"wrong values"};
          }) == "");
}
