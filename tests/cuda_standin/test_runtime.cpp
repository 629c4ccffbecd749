// The stand-in behaves like a CUDA runtime: devices, copies, order, memory, failures.
#include <atomic>
#include <numeric>

#include "lockstep/tests/cuda_standin/fixture.h"

using namespace standin;

namespace {

std::vector<int> counting(int count) {
    std::vector<int> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), 1);
    return values;
}

std::string device_name(int device) {
    cudaDeviceProp properties;
    ok(cudaGetDeviceProperties(&properties, device));
    return properties.name;
}

struct VisibleDevices {
    explicit VisibleDevices(const char* value) { setenv("CUDA_VISIBLE_DEVICES", value, 1); }
    ~VisibleDevices() { unsetenv("CUDA_VISIBLE_DEVICES"); }
};

}  // namespace

TEST_CASE("devices have the requested memory and number of SMs") {
    Config config = devices(3);
    config.devices[1] = {std::size_t{1} << 20, 20};
    const Fresh fresh(config);
    int count = 0;
    ok(cudaGetDeviceCount(&count));
    CHECK(count == 3);
    cudaDeviceProp properties;
    ok(cudaGetDeviceProperties(&properties, 1));
    CHECK(properties.multiProcessorCount == 20);
    CHECK(properties.totalGlobalMem == std::size_t{1} << 20);
    int sms = 0;
    ok(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(sms == 108);
}

TEST_CASE("CUDA_VISIBLE_DEVICES reorders devices, ends at the first invalid entry, and can hide all") {
    const auto visible = [](const char* value) {
        const VisibleDevices variable(value);
        reset(devices(3));
        std::vector<std::string> names;
        int count = 0;
        if (cudaGetDeviceCount(&count) != cudaSuccess) CHECK(cudaGetLastError() == cudaErrorNoDevice);
        for (int each = 0; each < count; ++each) names.push_back(device_name(each));
        return names;
    };
    CHECK(visible("2,0") == std::vector<std::string>{"Stand-in GPU 2", "Stand-in GPU 0"});
    CHECK(visible("1,7,0") == std::vector<std::string>{"Stand-in GPU 1"});
    CHECK(visible("0,0").empty());
    CHECK(visible("-1").empty());
    CHECK(visible("").empty());
    const Fresh fresh;
}

TEST_CASE("an absent or outdated driver") {
    Config config;
    int version = 0;
    int count = 7;
    config.driver = Driver::absent;
    {
        const Fresh fresh(config);
        CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
        CHECK(cudaGetLastError() == cudaErrorInsufficientDriver);
        CHECK(count == 0);
        ok(cudaDriverGetVersion(&version));
        CHECK(version == 0);
    }
    config.driver = Driver::too_old;
    const Fresh fresh(config);
    void* data = nullptr;
    CHECK(cudaMalloc(&data, 4) == cudaErrorInsufficientDriver);
    CHECK(std::string(cudaGetErrorName(cudaGetLastError())) == "cudaErrorInsufficientDriver");
    ok(cudaDriverGetVersion(&version));
    CHECK((version > 0 && version < CUDART_VERSION));
}

TEST_CASE("copies of every kind, counted by pair of devices") {
    const Fresh fresh;
    const auto values = counting(12);
    const std::size_t bytes = values.size() * sizeof(int);
    int* first = on_device(values, 0);
    int* second = on_device(std::vector<int>(12), 1);
    const cudaStream_t stream = new_stream(0);
    ok(cudaMemcpyPeerAsync(second, 1, first, 0, bytes, stream));
    ok(cudaStreamSynchronize(stream));
    CHECK(on_host(second, 12) == values);

    // The middle two columns of three rows of four.
    ok(cudaMemsetAsync(first, 0, bytes, stream));
    use(0);
    ok(cudaMemcpy2DAsync(first + 1, 16, second + 1, 16, 8, 3, cudaMemcpyDeviceToDevice, stream));
    ok(cudaStreamSynchronize(stream));
    CHECK(on_host(first, 12) == std::vector<int>{0, 2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0});

    const auto counted = counters();
    CHECK(counted.pairs.at({kHost, 0}).copies == 1);
    CHECK(counted.pairs.at({kHost, 1}).bytes == bytes);
    CHECK(counted.pairs.at({0, 1}).copies == 1);
    CHECK(counted.pairs.at({0, 1}).staged_copies == 1);
    CHECK(counted.pairs.at({1, 0}).bytes == 24);
    CHECK(counted.devices[0].memsets == 1);
    CHECK(counted.host_waits.at("cudaStreamSynchronize") == 2);
    reset_counters();
    CHECK(counters().pairs.empty());

    use(1);
    ok(cudaDeviceEnablePeerAccess(0, 0));
    ok(cudaMemcpyPeerAsync(second, 1, first, 0, bytes, stream));
    CHECK(counters().pairs.at({0, 1}).staged_copies == 0);
    ok(cudaDeviceSynchronize());
}

TEST_CASE("the host waits for pageable copies but not for pinned copies") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    int* data = on_device(counting(4));
    void* pinned = nullptr;
    ok(cudaMallocHost(&pinned, 16));
    std::vector<int> pageable(4);
    reset_counters();
    ok(cudaMemcpyAsync(pinned, data, 16, cudaMemcpyDeviceToHost, stream));
    CHECK(counters().host_waits.empty());
    ok(cudaMemcpyAsync(pageable.data(), data, 16, cudaMemcpyDeviceToHost, stream));
    CHECK(counters().host_waits.at("cudaMemcpyAsync") == 1);
    CHECK(pageable == counting(4));
    CHECK(static_cast<int*>(pinned)[3] == 4);
    ok(cudaHostRegister(pageable.data(), 16, cudaHostRegisterDefault));
    ok(cudaMemcpyAsync(pageable.data(), data, 16, cudaMemcpyDeviceToHost, stream));
    CHECK(counters().host_waits.at("cudaMemcpyAsync") == 1);
    ok(cudaStreamSynchronize(stream));
    ok(cudaHostUnregister(pageable.data()));
    ok(cudaFreeHost(pinned));
}

TEST_CASE("events order streams of different devices under random delays") {
    Config config = devices(4);
    config.max_delay_us = 300;
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
        config.delay_seed = seed;
        const Fresh fresh(config);
        std::vector<cudaStream_t> streams;
        std::vector<cudaEvent_t> events;
        for (int each = 0; each < 4; ++each) {
            streams.push_back(new_stream(each));
            events.push_back(new_event(each));
        }
        std::vector<int> order;  // appended to by one kernel at a time; otherwise the thread sanitizer reports a race
        for (int step = 0; step < 20; ++step) {
            const int now = step % 4;
            use(now);
            const auto at = static_cast<std::size_t>(now);
            ok(enqueue_host_kernel(streams[at], "append", [&order, step] { order.push_back(step); }, {}));
            ok(cudaEventRecord(events[at], streams[at]));
            ok(cudaStreamWaitEvent(streams[(at + 1) % 4], events[at], 0));
        }
        use(3);
        ok(cudaEventSynchronize(events[3]));
        CHECK(order.size() == 20);
        CHECK(std::is_sorted(order.begin(), order.end()));
        CHECK(counters().devices[2].launches.at("append") == 5);
    }
}

TEST_CASE("a wait applies to the record before it, not to later ones") {
    const Fresh fresh;
    const cudaStream_t fast = new_stream(), slow = new_stream();
    const cudaEvent_t event = new_event();
    std::atomic<bool> open{false};
    ok(cudaEventRecord(event, fast));
    ok(cudaStreamWaitEvent(slow, event, 0));
    ok(enqueue_host_kernel(fast, "hold", [&] { open.wait(false); }, {}));
    ok(cudaEventRecord(event, fast));
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    CHECK(cudaStreamQuery(fast) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
    ok(cudaStreamSynchronize(slow));  // hangs if it waited for the second record
    open = true;
    open.notify_all();
    ok(cudaEventSynchronize(event));
    ok(cudaStreamSynchronize(fast));
}

TEST_CASE("devices overlap: each waits until the other has started") {
    const Fresh fresh;
    std::atomic<int> begun{0};
    const auto meet = [&] {
        begun.fetch_add(1);
        while (begun.load() < 2) std::this_thread::yield();
    };
    const cudaStream_t first = new_stream(0);
    ok(enqueue_host_kernel(first, "meet", meet, {}));
    const cudaStream_t second = new_stream(1);
    ok(enqueue_host_kernel(second, "meet", meet, {}));
    ok(cudaStreamSynchronize(first));
    ok(cudaStreamSynchronize(second));
}

TEST_CASE("elapsed time is that between the records") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    const cudaEvent_t start = new_event(0, cudaEventDefault), end = new_event(0, cudaEventDefault);
    ok(cudaEventRecord(start, stream));
    ok(enqueue_host_kernel(stream, "sleep", [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, {}));
    ok(cudaEventRecord(end, stream));
    ok(cudaEventSynchronize(end));
    float milliseconds = 0;
    ok(cudaEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 20);
}

TEST_CASE("a missing wait is a data race that the stand-in's locks do not hide", "[.race]") {
    const Fresh fresh;
    int shared = 0;
    const cudaStream_t first = new_stream(), second = new_stream();
    ok(enqueue_host_kernel(first, "write", [&] { shared = 1; }, {}));
    ok(cudaEventRecord(new_event(), first));
    ok(enqueue_host_kernel(second, "write", [&] { shared = 2; }, {}));
    ok(cudaDeviceSynchronize());
    CHECK(shared != 0);
}

TEST_CASE("unread mistakes end the process with status 97", "[.exit]") {
    reset();
    ok(cudaStreamWaitEvent(new_stream(), new_event(), 0));
}

TEST_CASE("only the default stream and blocking streams wait for each other") {
    const Fresh fresh;
    std::vector<int> order;
    const auto append = [&](int value, int sleep_ms) {
        return [&order, value, sleep_ms] {
            std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
            order.push_back(value);
        };
    };
    const cudaStream_t blocking = new_stream(0, cudaStreamDefault);
    ok(enqueue_host_kernel(blocking, "append", append(1, 10), {}));
    ok(enqueue_host_kernel(nullptr, "append", append(2, 5), {}));
    ok(enqueue_host_kernel(blocking, "append", append(3, 0), {}));
    ok(cudaStreamSynchronize(blocking));
    CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a destroyed stream finishes its work, and host functions run in order") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    int value = 1;
    ok(enqueue_host_kernel(stream, "double", [&] { value *= 2; }, {}));
    ok(cudaLaunchHostFunc(
        stream, [](void* data) { *static_cast<int*>(data) += 5; }, &value));
    ok(cudaEventRecord(event, stream));
    ok(cudaStreamDestroy(stream));
    ok(cudaEventSynchronize(event));
    CHECK(value == 7);
    const cudaStream_t other = new_stream();
    const auto late = [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        value = 8;
    };
    ok(enqueue_host_kernel(other, "late", late, {}));
    ok(cudaStreamDestroy(other));
    ok(cudaDeviceSynchronize());
    CHECK(value == 8);
    CHECK(counters().devices[0].host_functions == 1);
    CHECK(counters().live_streams == 0);
}

TEST_CASE("memory limits, statistics, poison and stream-ordered allocation") {
    Config config;
    config.devices[1].memory = 1000;
    const Fresh fresh(config);
    use(1);
    void* data = nullptr;
    ok(cudaMalloc(&data, 600));
    CHECK(on_host(static_cast<unsigned char*>(data), 2) == std::vector<unsigned char>{0xFF, 0xFF});
    void* more = nullptr;
    CHECK(cudaMalloc(&more, 500) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(more == nullptr);
    std::size_t left = 0, total = 0;
    ok(cudaMemGetInfo(&left, &total));
    CHECK((left == 400 && total == 1000));
    ok(cudaFree(data));
    const cudaStream_t stream = new_stream(1);
    use(0);  // stream-ordered memory is allocated on the stream's device
    ok(cudaMallocAsync(&data, 500, stream));
    cudaPointerAttributes attributes;
    ok(cudaPointerGetAttributes(&attributes, data));
    CHECK((attributes.type == cudaMemoryTypeDevice && attributes.device == 1));
    ok(cudaFreeAsync(data, stream));
    const auto counted = counters().devices[1];
    CHECK((counted.bytes_in_use == 0 && counted.bytes_peak == 600 && counted.live_allocations == 0));
    ok(cudaFree(nullptr));
}

TEST_CASE("kernels that read a peer's memory are counted") {
    const Fresh fresh;
    int* data = on_device(counting(4), 0);
    const cudaStream_t stream = new_stream(1);
    int can = 0;
    ok(cudaDeviceCanAccessPeer(&can, 1, 0));
    CHECK(can == 1);
    ok(cudaDeviceEnablePeerAccess(0, 0));
    CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(cudaGetLastError() == cudaErrorPeerAccessAlreadyEnabled);
    int sum = 0;
    ok(enqueue_host_kernel(stream, "sum", [&] { sum = data[0] + data[3]; }, {reads(data, 16)}));
    ok(cudaStreamSynchronize(stream));
    CHECK(sum == 5);
    CHECK(counters().pairs.at({0, 1}).kernel_read_bytes == 16);
}

TEST_CASE("failures can be injected") {
    const Fresh fresh;
    void* data = nullptr;
    inject_failure("cudaMalloc", 2, cudaErrorMemoryAllocation);
    ok(cudaMalloc(&data, 4));
    CHECK(cudaMalloc(&data, 4) == cudaErrorMemoryAllocation);
    CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    ok(cudaMalloc(&data, 4));

    const cudaStream_t stream = new_stream();
    int ran = 0;
    std::atomic<bool> launched{false};  // the next call after the fault reports it, which could be a launch
    ok(enqueue_host_kernel(stream, "hold", [&] { launched.wait(false); }, {}));
    inject_fault("count", 2);
    for (int each = 0; each < 3; ++each) ok(enqueue_host_kernel(stream, "count", [&] { ++ran; }, {}));
    launched = true;
    launched.notify_all();
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(ran == 1);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaFree(data) == cudaErrorIllegalAddress);  // a poisoned context is permanent
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
}

TEST_CASE("calling threads are recorded") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    ok(enqueue_host_kernel(stream, "nothing", [] {}, {}));
    ok(cudaStreamSynchronize(stream));
    CHECK(calling_threads() == std::set{std::this_thread::get_id()});
    std::thread other([] {
        int device = 5;
        (void)cudaGetDevice(&device);
    });
    other.join();
    CHECK(calling_threads().size() == 2);
}

TEST_CASE("environment variables configure the process") {
    setenv("LOCKSTEP_STANDIN_DEVICES", "5", 1);
    setenv("LOCKSTEP_STANDIN_PEER_ACCESS", "0", 1);
    {
        const Fresh fresh(config_from_environment());
        int count = 0, can = 1;
        ok(cudaGetDeviceCount(&count));
        ok(cudaDeviceCanAccessPeer(&can, 0, 4));
        CHECK((count == 5 && can == 0));
    }
    setenv("LOCKSTEP_STANDIN_DEVICES", "two", 1);
    CHECK_THROWS_AS(config_from_environment(), std::invalid_argument);
    unsetenv("LOCKSTEP_STANDIN_DEVICES");
    unsetenv("LOCKSTEP_STANDIN_PEER_ACCESS");
}
