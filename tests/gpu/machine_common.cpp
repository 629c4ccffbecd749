// Implementation shared by the stand-in and GPUs.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/kernels.h"
#include "lockstep/tests/gpu/machine.h"

namespace lockstep::test {

bool is_pinned(const void* memory) {
    cudaPointerAttributes attributes{};
    REQUIRE(cudaPointerGetAttributes(&attributes, memory) == cudaSuccess);
    return attributes.type == cudaMemoryTypeHost;
}

void add_one(const ExecContext& context, int* to, const int* from, std::int64_t n) {
    launch_add_one(static_cast<cudaStream_t>(context.native), to, from, n, n);
}

void lose_context(Device device) { Stream::of(device).run(nowhere, {}, write_nowhere); }

void skipped(const std::string& why) {
    const std::string name(Catch::getResultCapture().getCurrentTestName());
    std::printf("skipped: %s: %s\n", name.c_str(), why.c_str());
    SUCCEED("skipped: " << why);
}

}  // namespace lockstep::test
