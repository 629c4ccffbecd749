// Launches of kernels compiled by nvcc: on the stand-in, which checks and counts launches without running them.
#include "lockstep/tests/cuda_standin/launches.h"

#include "lockstep/runtime/error.h"
#include "lockstep/tests/cuda_standin/fixture.h"

using namespace standin;

namespace {

std::uint64_t launches() {
    std::uint64_t all = 0;
    const Counters counted = counters();
    for (const auto& [kernel, count] : counted.devices[0].launches) all += count;
    return all;
}

std::string thrown_by(const std::function<void()>& call) {
    try {
        call();
    } catch (const lockstep::DeviceError& error) {
        return error.what();
    }
    return {};
}

}  // namespace

TEST_CASE("an earlier unread error is not attributed to the launch") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    const std::function<void()> calls[] = {[&] { launch_elements(stream); },
                                           [&] { launch_sums(stream, 10, 100, false); }};
    for (const auto& launch : calls) {
        reset_counters();
        CHECK(cudaSetDevice(99) == cudaErrorInvalidDevice);  // by the program that uses the library
        (void)take_mistakes();
        CHECK(thrown_by(launch).empty());
        CHECK(launches() == 1);
        CHECK(cudaGetLastError() == cudaErrorInvalidDevice);  // still readable for that program
    }
}

TEST_CASE("a failed launch throws its own error and clears it") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    for (const char* call : {"cudaLaunchKernel", "cudaLaunchKernelExC"})
        inject_failure(call, 1, cudaErrorLaunchOutOfResources);
    const std::string message = thrown_by([&] { launch_elements(stream); });
    CHECK(message.find("add_one failed: ") == 0);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(launches() == 0);
    launch_elements(stream);
    CHECK(launches() == 1);
    ok(cudaStreamDestroy(stream));
    CHECK_FALSE(thrown_by([&] { launch_elements(stream); }).empty());
    CHECK(only_mistake() == Kind::destroyed_handle);
}

TEST_CASE("reductions of every shape are launched with valid grid and block sizes") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    for (const bool across : {false, true})
        for (const long outputs : {1, 3, 64, 1000, 1 << 22})
            for (const long elements : {1, 10, 33, 1000, 100000}) {
                INFO(outputs << " sums of " << elements << (across ? ", across" : ""));
                reset_counters();
                launch_sums(stream, outputs, elements, across);
                CHECK(launches() == 1);
            }
    reset_counters();
    launch_sums(stream, 0, 10, false);
    CHECK(launches() == 0);
}
