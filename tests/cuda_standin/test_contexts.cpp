// Contexts, the driver's lock and full queues: memory and time that they cost on a GPU without an error.
#include <cuda.h>

#include <atomic>
#include <future>

#include "lockstep/tests/cuda_standin/fixture.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace standin;
using std::chrono::milliseconds;

namespace {

std::set<int> devices_with_context() {
    std::set<int> devices;
    for (const auto& [device, call] : contexts()) devices.insert(device);
    return devices;
}

/// A gate for host functions.
struct Gate {
    std::atomic<bool> open{false};
    static void wait(void* gate) {
        while (!static_cast<Gate*>(gate)->open) std::this_thread::sleep_for(milliseconds(1));
    }
};

bool is_done(const std::future<cudaError_t>& call, milliseconds within) {
    return call.wait_for(within) == std::future_status::ready;
}

}  // namespace

TEST_CASE("device queries create no context") {
    const Fresh fresh(devices(3));
    int number = 0;
    ok(cudaGetDeviceCount(&number));
    ok(cudaGetDevice(&number));
    cudaDeviceProp properties;
    ok(cudaGetDeviceProperties(&properties, 1));
    ok(cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, 2));
    char text[20];
    ok(cudaDeviceGetPCIBusId(text, sizeof text, 1));
    ok(cudaDriverGetVersion(&number));
    ok(cudaRuntimeGetVersion(&number));
    ok(cudaDeviceCanAccessPeer(&number, 0, 1));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(contexts().empty());
}

TEST_CASE("calls that need a context create one on the current device") {
    const std::pair<const char*, std::function<void()>> makers[] = {
        {"cudaSetDevice", [] { use(0); }},
        {"cudaFree", [] { ok(cudaFree(nullptr)); }},
        {"cudaHostAlloc",
         [] {
             void* memory = nullptr;
             ok(cudaHostAlloc(&memory, 16, cudaHostAllocPortable));
             ok(cudaFreeHost(memory));
         }},
        {"cudaMemGetInfo",
         [] {
             std::size_t free = 0, all = 0;
             ok(cudaMemGetInfo(&free, &all));
         }},
        {"cudaDeviceSynchronize", [] { ok(cudaDeviceSynchronize()); }},
    };
    for (const auto& [name, make] : makers) {
        INFO(name);
        const Fresh fresh(devices(2));
        make();
        CHECK(contexts() == std::map<int, std::string>{{0, name}});
    }
    const Fresh fresh(devices(4));
    const cudaEvent_t event = new_event(2);
    const cudaStream_t stream = new_stream(2);
    ok(cudaEventRecord(event, stream));
    CHECK(devices_with_context() == std::set<int>{2});
    ok(cudaDeviceEnablePeerAccess(3, 0));
    CHECK(devices_with_context() == std::set<int>{2, 3});
    std::thread([&] { (void)cudaEventQuery(event); }).join();  // its current device is the first one
    CHECK(contexts().at(0) == "cudaEventQuery");
    CHECK(devices_with_context() == std::set<int>{0, 2, 3});
}

TEST_CASE("the driver lists the devices that have a context without creating one") {
    const Fresh fresh(devices(2));
    use(1);
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    ok(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 7000, cudaEnableDefault, &result));
#else
    ok(cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &found, cudaEnableDefault, &result));
#endif
    REQUIRE(result == cudaDriverEntryPointSuccess);
    const auto state = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(found);
    unsigned flags = 0;
    int active = -1;
    CHECK(state(0, &flags, &active) == CUDA_SUCCESS);
    CHECK(active == 0);
    CHECK(state(1, &flags, &active) == CUDA_SUCCESS);
    CHECK(active == 1);
    CHECK(state(2, &flags, &active) == CUDA_ERROR_INVALID_DEVICE);
    CHECK(devices_with_context() == std::set<int>{1});
}

TEST_CASE("cudaFree holds the driver's lock while it waits, so calls of other threads wait for it") {
    const Fresh fresh;
    Gate gate;
    const cudaStream_t stream = new_stream();
    void* data = on_device(std::vector<int>(4));
    ok(cudaLaunchHostFunc(stream, Gate::wait, &gate));
    auto freed = std::async(std::launch::async, [&] { return cudaFree(data); });
    while (!freed.valid() || counters().calls["cudaFree"] == 0) std::this_thread::yield();
    std::future<cudaError_t> asked;
    CHECK(lockstep::test::comes_true([&] {  // until the thread has the lock
        asked = std::async(std::launch::async, [] {
            int device = 0;
            return cudaGetDevice(&device);
        });
        return !is_done(asked, milliseconds(100));
    }));
    CHECK_FALSE(is_done(freed, milliseconds(0)));
    gate.open = true;
    CHECK(asked.get() == cudaSuccess);
    CHECK(freed.get() == cudaSuccess);

    // Waiting for a stream does not hold the lock.
    gate.open = false;
    ok(cudaLaunchHostFunc(stream, Gate::wait, &gate));
    auto synchronized = std::async(std::launch::async, [&] { return cudaStreamSynchronize(stream); });
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    (void)cudaGetLastError();
    gate.open = true;
    CHECK(synchronized.get() == cudaSuccess);
}

TEST_CASE("the host waits when a stream's queue is full") {
    Config config = devices(1);
    config.launch_queue = 4;
    const Fresh fresh(config);
    Gate gate;
    const cudaStream_t stream = new_stream();
    void* data = on_device(std::vector<int>(4));
    ok(cudaLaunchHostFunc(stream, Gate::wait, &gate));
    for (int i = 0; i < 3; ++i) ok(cudaMemsetAsync(data, i, 16, stream));
    auto fifth = std::async(std::launch::async, [&] { return cudaMemsetAsync(data, 7, 16, stream); });
    CHECK_FALSE(is_done(fifth, milliseconds(100)));
    gate.open = true;
    CHECK(fifth.get() == cudaSuccess);
    ok(cudaStreamSynchronize(stream));
}
