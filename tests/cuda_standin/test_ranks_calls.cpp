// CUDA calls of ranks, and their handling of errors: on the stand-in, which counts and rejects calls.
#include "lockstep/runtime/error.h"
#include "lockstep/tests/cuda_standin/ranks_training.h"
#include "lockstep/tests/cuda_standin/standin.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("all ranks fail at once if a tensor cannot be read") {
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
