// Tests on GPUs: uses the CUDA runtime itself.
#include "lockstep/tests/gpu/machine.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/kernels.h"

namespace lockstep::test {

bool on_standin() { return false; }

void start_with_devices(int count) {
    const int per_gpu = std::max(1, (count + gpu_count() - 1) / gpu_count());
    ::setenv("LOCKSTEP_DEVICES_PER_GPU", std::to_string(per_gpu).c_str(), 1);
}

std::vector<std::string> take_mistakes() {
    const cudaError_t unread = cudaGetLastError();
    if (unread == cudaSuccess || cudaGetLastError() == unread) return {};  // the error of a lost context is permanent
    return {std::string("unread error: ") + cudaGetErrorName(unread)};
}

void check_no_mistakes() {
    for (const std::string& mistake : take_mistakes()) FAIL_CHECK(mistake);
}

void set_delays(std::uint64_t /*seed*/, int /*longest_us*/) {}

std::map<int, std::string> contexts() {
    // Uses the driver only if it is loaded: a query of the runtime might create a context.
    void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return {};
    const auto ask =
        reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(::dlsym(driver, "cuDevicePrimaryCtxGetState"));
    REQUIRE(ask != nullptr);
    std::map<int, std::string> there;
    for (int gpu = 0; gpu < gpu_count(); ++gpu) {
        unsigned flags = 0;
        int active = 0;
        REQUIRE(ask(gpu, &flags, &active) == CUDA_SUCCESS);
        if (active != 0) there[gpu] = "a call that a card does not name";
    }
    ::dlclose(driver);
    return there;
}

void write_nowhere(const ExecContext& context) { launch_write_nowhere(static_cast<cudaStream_t>(context.native)); }

}  // namespace lockstep::test
