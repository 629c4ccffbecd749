// Operations between processes on tensors of the CUDA stand-in: every rank has a device of its own.
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/cuda_standin/ranks.h"
#include "lockstep/tests/parallel/comm/group_exercise.h"

using namespace lockstep;
using namespace lockstep::testing;
using Lines = std::vector<std::string>;

TEST_CASE("every operation on tensors of a GPU, contiguous and strided, blocking or not") {
    for (const std::string& backend : backends_here())
        for (const int delay_us : {0, 100}) {
            INFO(backend << ", delays " << delay_us);
            CHECK(on_gpus(backend, 2, [&](ProcessGroup& group) {
                      standin::set_delays(static_cast<std::uint64_t>(group.rank()) + 1, delay_us);
                      Lines lines = exercise_group(group, Device::cuda(0));
                      const Lines more = exercise_group_messages(group, Device::cuda(0));
                      lines.insert(lines.end(), more.begin(), more.end());
                      return lines;
                  }) == "");
        }
}

TEST_CASE("an operation comes behind what the GPU was given, and what the GPU is given next sees it") {
    CHECK(on_gpus("shm", 2, [](ProcessGroup& group) {
              standin::set_delays(7, 2000);
              const Tensor x = Tensor::zeros({1000}, DType::f32, Device::cuda(0));
              x.fill_(group.rank() + 1);
              const ProcessGroup::Work work = group.all_reduce_async(x);
              const Tensor apart = Tensor::full({1000}, 1, DType::f32, Device::cuda(0)) * 5;  // while it is under way
              work.wait();
              const Tensor both = x + apart;
              return both.to_vector<float>() == std::vector<float>(1000, 8) ? Lines() : Lines{"wrong values"};
          }) == "");
}

TEST_CASE("a tensor that cannot be reached: all ranks hear of it at once") {
    const std::string found = on_gpus("shm", 2, [](ProcessGroup& group) {
        const Tensor x = Tensor::full({1000}, 1, DType::f32, Device::cuda(0));
        Stream::of(Device::cuda(0)).synchronize();
        group.barrier();
        if (group.rank() == 1) standin::inject_failure("cudaMemcpy2DAsync", 1, cudaErrorInvalidValue);
        try {
            group.all_reduce(x);
        } catch (const Error& error) {
            return Lines{error.what()};
        }
        return Lines{"nothing was thrown"};
    });
    INFO(found);
    CHECK(contains(found, "rank 0: rank 0 of 2: all_reduce"));
    CHECK(contains(found, "rank 1 cannot reach a tensor: cudaMemcpy2DAsync failed"));
    CHECK(contains(found, "rank 1: cudaMemcpy2DAsync failed"));
}
