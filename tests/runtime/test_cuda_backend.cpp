// The CUDA backend on the stand-in: what it asks of CUDA, and what it makes of CUDA's answers.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/cuda/launch.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cuda_standin/standin.h"

using namespace lockstep;

namespace {

/// A backend on a fresh stand-in, without mistakes at the end and with every call from one thread.
struct Machine {
    explicit Machine(std::size_t gpus = 2, const char* per_gpu = nullptr, bool peers = true) {
        standin::Config config;
        config.devices.resize(gpus);
        config.peer_access = peers;
        config.delay_seed = 7;
        config.max_delay_us = 200;
        standin::reset(config);
        if (per_gpu != nullptr)
            setenv("LOCKSTEP_DEVICES_PER_GPU", per_gpu, 1);
        else
            unsetenv("LOCKSTEP_DEVICES_PER_GPU");
    }
    ~Machine() {
        for (const auto& each : standin::take_mistakes())
            FAIL_CHECK(std::string(standin::name_of(each.kind)) << ": " << each.message);
        CHECK(standin::calling_threads().size() <= 1);
        unsetenv("LOCKSTEP_DEVICES_PER_GPU");
    }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    cuda::CudaBackend backend;
};

/// Memory of a device for as long as a test needs it.
struct Memory {
    Memory(Machine& on, int device, std::size_t count)
        : machine(on),
          index(device),
          bytes(count * sizeof(int)),
          data(static_cast<int*>(on.backend.allocate(device, bytes))) {
        REQUIRE(data != nullptr);
    }
    ~Memory() { machine.backend.release(index, data, bytes); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    Machine& machine;
    int index;
    std::size_t bytes;
    int* data;
};

struct AddOne {
    int* to;
    const int* from;
    LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = from[i] + 1; }
};

/// to = from + 1 by a kernel.
void add_one(StreamImpl& stream, int* to, const int* from, std::int64_t n) {
    stream.run(
        [=](const Launch& launch) {
            const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(int);
            const cuda::Touched touched[] = {{to, bytes, true}, {from, bytes, false}};
            cuda::launch({static_cast<cudaStream_t>(launch.native), touched}, "add_one", n, AddOne{to, from});
        },
        1);
}

std::vector<int> numbers(std::size_t count) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), 5);
    return values;
}

const Device host;

/// An event of another kind of device.
class ForeignEvent final : public EventImpl {
public:
    bool done() const override { return true; }
    void synchronize() const override { ++waits; }
    double elapsed_ms_since(const EventImpl&) const override { return 0; }
    bool recorded() const override { return true; }
    mutable int waits = 0;
};

template <class F>
std::string message_of(F&& f) {
    try {
        f();
    } catch (const DeviceError& error) {
        return error.what();
    }
    return {};
}

}  // namespace

TEST_CASE("work, copies and events of one device run in order") {
    Machine m;
    const auto stream = m.backend.make_stream(1, StreamRole::compute);
    const auto begin = m.backend.make_event(1, true);
    const auto end = m.backend.make_event(1, true);
    CHECK(begin->done());
    CHECK_FALSE(begin->recorded());
    const Memory a(m, 1, 1000), b(m, 1, 1000);
    const auto input = numbers(1000);
    std::vector<int> output(1000), filled(1000);
    stream->record(*begin);
    stream->copy(a.data, Device::cuda(1), input.data(), host, a.bytes);
    add_one(*stream, b.data, a.data, 1000);
    stream->copy(a.data, Device::cuda(1), b.data, Device::cuda(1), a.bytes);
    stream->copy(output.data(), host, a.data, Device::cuda(1), a.bytes);
    stream->fill(b.data, 0x01, b.bytes);
    stream->record(*end);
    stream->copy(filled.data(), host, b.data, Device::cuda(1), b.bytes);
    stream->synchronize();
    CHECK(stream->idle());
    CHECK(end->done());
    CHECK(end->elapsed_ms_since(*begin) > 0);
    for (std::size_t i = 0; i < 1000; ++i) {
        REQUIRE(output[i] == input[i] + 1);
        REQUIRE(filled[i] == 0x01010101);
    }
}

TEST_CASE("pinned memory is copied without the host waiting") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::load);
    const Memory a(m, 0, 64);
    auto* pinned = static_cast<int*>(m.backend.allocate_pinned(64 * sizeof(int)));
    std::iota(pinned, pinned + 64, 3);
    standin::reset_counters();
    stream->copy(a.data, Device::cuda(0), pinned, host, a.bytes);
    stream->copy(pinned, host, a.data, Device::cuda(0), a.bytes);
    CHECK(standin::counters().host_waits.empty());
    stream->synchronize();
    CHECK(pinned[63] == 66);
    m.backend.release_pinned(pinned, 64 * sizeof(int));
    CHECK(standin::counters().live_pinned == 0);
}

TEST_CASE("an event orders streams of two devices, an event of another kind makes the host wait") {
    Machine m;
    const auto first = m.backend.make_stream(0, StreamRole::compute);
    const auto second = m.backend.make_stream(1, StreamRole::compute);
    const auto ready = m.backend.make_event(0, false);
    second->wait(*ready);  // never recorded: nothing to wait for
    const Memory a(m, 0, 256), b(m, 1, 256);
    const auto input = numbers(256);
    first->copy(a.data, Device::cuda(0), input.data(), host, a.bytes);
    for (int round = 0; round < 20; ++round) add_one(*first, a.data, a.data, 256);
    first->record(*ready);
    second->wait(*ready);
    second->copy(b.data, Device::cuda(1), a.data, Device::cuda(0), b.bytes);
    std::vector<int> output(256);
    second->copy(output.data(), host, b.data, Device::cuda(1), b.bytes);
    second->synchronize();
    CHECK(ready->done());
    for (std::size_t i = 0; i < 256; ++i) REQUIRE(output[i] == input[i] + 20);
    const ForeignEvent foreign;
    second->wait(foreign);
    CHECK(foreign.waits == 1);
}

TEST_CASE("events take no time unless they are asked to") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::compute);
    const auto first = m.backend.make_event(0, false), second = m.backend.make_event(0, false);
    stream->record(*first);
    stream->record(*second);
    stream->synchronize();
    CHECK(message_of([&] { (void)second->elapsed_ms_since(*first); }).find("cudaEventElapsedTime") == 0);
    CHECK(standin::take_mistakes().size() == 1);
}

TEST_CASE("callbacks run in stream order, and what they throw comes out of synchronize") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::compute);
    std::vector<int> order;
    std::thread::id thread;
    stream->callback([&] {
        order.push_back(1);
        thread = std::this_thread::get_id();
    });
    stream->callback([&] { order.push_back(2); });
    stream->synchronize();
    CHECK(order == std::vector<int>{1, 2});
    CHECK(thread != std::this_thread::get_id());
    stream->callback([] { throw DataError("disk.bin: gone"); });
    stream->callback([&] { order.push_back(3); });
    CHECK_THROWS_AS(stream->synchronize(), DataError);
    CHECK(order.size() == 3);
    stream->synchronize();
}

TEST_CASE("peers: opened once per pair, read by kernels, copied straight") {
    Machine m(3);
    CHECK(m.backend.peer_access(1, 0));  // it could be opened
    CHECK(standin::contexts().empty());
    const auto stream = m.backend.make_stream(1, StreamRole::compute);
    const Memory a(m, 0, 100), b(m, 1, 100);
    CHECK(m.backend.peer_access(1, 0));
    CHECK(m.backend.peer_access(1, 0));
    CHECK(m.backend.peer_access(2, 2));
    CHECK(standin::counters().calls["cudaDeviceEnablePeerAccess"] == 1);
    const auto input = numbers(100);
    std::vector<int> output(100);
    const auto owner = m.backend.make_stream(0, StreamRole::compute);
    owner->copy(a.data, Device::cuda(0), input.data(), host, a.bytes);
    owner->synchronize();
    add_one(*stream, b.data, a.data, 100);
    stream->copy(output.data(), host, b.data, Device::cuda(1), b.bytes);
    stream->copy(b.data, Device::cuda(1), a.data, Device::cuda(0), b.bytes);
    stream->synchronize();
    // Pushed by the owner: columns 1 and 2 of rows of four, in one copy.
    std::vector<int> rows(100);
    owner->copy_2d(b.data, 8, Device::cuda(1), a.data + 1, 16, Device::cuda(0), 8, 25);
    owner->synchronize();
    stream->copy(rows.data(), host, b.data, Device::cuda(1), b.bytes);
    stream->synchronize();
    CHECK(rows[3] == input[6]);
    CHECK(rows[49] == input[98]);
    CHECK(output[99] == input[99] + 1);
    const auto pair = standin::counters().pairs[{0, 1}];
    CHECK(pair.copies == 2);
    CHECK(pair.staged_copies == 0);
    CHECK(pair.kernel_reads == 1);
}

TEST_CASE("cards without peer access copy through the host, whole and in rows") {
    Machine m(2, nullptr, false);
    CHECK_FALSE(m.backend.peer_access(1, 0));
    const auto stream = m.backend.make_stream(0, StreamRole::communicate);
    const Memory a(m, 0, 12), b(m, 1, 12);
    const auto input = numbers(12);
    std::vector<int> output(12), rows(12, -1);
    stream->copy(a.data, Device::cuda(0), input.data(), host, a.bytes);
    stream->copy(b.data, Device::cuda(1), a.data, Device::cuda(0), a.bytes);
    stream->synchronize();
    const auto reader = m.backend.make_stream(1, StreamRole::compute);
    reader->copy(output.data(), host, b.data, Device::cuda(1), b.bytes);
    // Columns 1 and 2 of three rows of four, to columns 0 and 1.
    stream->copy_2d(b.data, 16, Device::cuda(1), a.data + 1, 16, Device::cuda(0), 8, 3);
    stream->synchronize();
    reader->copy_2d(rows.data(), 8, host, b.data, 16, Device::cuda(1), 8, 3);
    reader->synchronize();
    CHECK(output == input);
    CHECK(std::vector<int>(rows.begin(), rows.begin() + 6) == std::vector<int>{6, 7, 10, 11, 14, 15});
    CHECK(standin::counters().pairs[{0, 1}].staged_copies == 1 + 3);  // a row at a time
    CHECK(standin::counters().calls["cudaDeviceEnablePeerAccess"] == 0);
}

TEST_CASE("one GPU as several logical devices") {
    Machine m(2, "4");
    REQUIRE(m.backend.device_count() == 8);
    const DeviceInfo info = m.backend.info(5);
    CHECK(info.physical_index == 1);
    CHECK(info.name.find("(2 of 4)") != std::string::npos);
    CHECK(info.total_memory == (std::size_t{8} << 30) / 4);
    CHECK(info.cache_bytes == std::size_t{40} << 20);
    CHECK(m.backend.peer_access(0, 3));
    CHECK(m.backend.peer_access(0, 4));
    const auto first = m.backend.make_stream(4, StreamRole::compute);
    const auto second = m.backend.make_stream(5, StreamRole::compute);
    const Memory a(m, 4, 10), b(m, 5, 10);
    const auto input = numbers(10);
    std::vector<int> output(10);
    first->copy(a.data, Device::cuda(4), input.data(), host, a.bytes);
    first->synchronize();
    second->copy(b.data, Device::cuda(5), a.data, Device::cuda(4), a.bytes);
    second->copy(output.data(), host, b.data, Device::cuda(5), a.bytes);
    second->synchronize();
    CHECK(output == input);
    CHECK(m.backend.info(5).free_memory == info.total_memory - b.bytes);
    // The share is a limit, although the GPU has more.
    CHECK(m.backend.allocate(5, info.total_memory) == nullptr);
    second->run([](const Launch& launch) { CHECK(launch.device == Device::cuda(5)); }, 1);
}

TEST_CASE("a malformed number of logical devices is an error, every time") {
    for (const char* text : {"0", "-1", "two", "65", "4x"}) {
        Machine m(1, text);
        CHECK_THROWS_AS(m.backend.device_count(), InvalidArgument);
        CHECK_THROWS_AS(m.backend.device_count(), InvalidArgument);
    }
}

TEST_CASE("no driver, an old driver, no GPU: no devices, and why") {
    standin::Config config;
    config.driver = standin::Driver::absent;
    standin::reset(config);
    {
        cuda::CudaBackend backend;
        CHECK(backend.device_count() == 0);
        CHECK(backend.absence_reason() == "no CUDA driver");
    }
    config.driver = standin::Driver::too_old;
    standin::reset(config);
    {
        cuda::CudaBackend backend;
        CHECK(backend.device_count() == 0);
        CHECK(backend.absence_reason().find("too old") != std::string::npos);
    }
    config.driver = standin::Driver::present;
    config.devices.clear();
    standin::reset(config);
    {
        cuda::CudaBackend backend;
        CHECK(backend.device_count() == 0);
        CHECK(backend.absence_reason().find("no GPU") != std::string::npos);
    }
    CHECK(standin::take_mistakes().empty());
    Machine m;
    CHECK(m.backend.absence_reason().empty());
}

TEST_CASE("memory that is not there is null, not an error") {
    Machine m;
    CHECK(m.backend.allocate(1, std::size_t{9} << 30) == nullptr);
    const Memory a(m, 1, 16);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data) % 256 == 0);
    CHECK(standin::counters().devices[1].bytes_in_use >= a.bytes);
}

TEST_CASE("objects die while another device is current, and the caller's device stays current") {
    Machine m;
    {
        const auto stream = m.backend.make_stream(1, StreamRole::compute);
        const auto event = m.backend.make_event(1, true);
        const Memory a(m, 1, 16);
        REQUIRE(cudaSetDevice(0) == cudaSuccess);
        stream->fill(a.data, 0, a.bytes);
        stream->record(*event);
        stream->synchronize();
        int current = -1;
        REQUIRE(cudaGetDevice(&current) == cudaSuccess);
        CHECK(current == 0);
    }
    const auto left = standin::counters();
    CHECK(left.live_streams == 0);
    CHECK(left.live_events == 0);
    CHECK(left.devices[1].live_allocations == 0);
}

TEST_CASE("a call that fails names itself, its status, the device and the place; the backend goes on") {
    Machine m;
    const auto stream = m.backend.make_stream(1, StreamRole::compute);
    const Memory a(m, 1, 16);
    const auto input = numbers(16);
    standin::inject_failure("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
    const std::string message = message_of([&] { stream->copy(a.data, Device::cuda(1), input.data(), host, a.bytes); });
    for (const char* part : {"cudaMemcpyAsync", "cudaErrorInvalidValue", "device 1", "cuda_stream.cpp:"})
        CHECK(message.find(part) != std::string::npos);
    standin::inject_failure("cudaStreamSynchronize", 1, cudaErrorNotSupported);
    CHECK_THROWS_AS(stream->synchronize(), DeviceError);
    stream->copy(a.data, Device::cuda(1), input.data(), host, a.bytes);
    stream->synchronize();
}

TEST_CASE("a child of a process that has asked the driver makes no call, and destructors return") {
    Machine m;
    auto stream = m.backend.make_stream(0, StreamRole::compute);
    auto event = m.backend.make_event(0, false);
    const pid_t child = ::fork();
    if (child == 0) {
        const std::string text =
            "CUDA: cuda:0 was in use when this process was forked, and stays with its parent; fork before devices are "
            "used, or start the child's program with exec";
        standin::reset_counters();
        int wrong = 0;
        for (const std::function<void()>& call : std::vector<std::function<void()>>{
                 [&] { stream->synchronize(); }, [&] { stream->record(*event); },
                 [&] { static_cast<void>(m.backend.allocate(1, 64)); },
                 [&] { static_cast<void>(m.backend.allocate_pinned(64)); },
                 [&] { static_cast<void>(m.backend.make_stream(1, StreamRole::load)); }}) {
            try {
                call();
                ++wrong;
            } catch (const InvalidArgument& error) {
                if (error.what() != text) ++wrong;
            }
        }
        stream.reset();
        event.reset();
        ::_exit(wrong == 0 && standin::counters().calls.empty() ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    stream->synchronize();
}

// In a process of its own: the context is lost for good.
TEST_CASE("after a lost context every call throws and destructors return", "[.lost]") {
    standin::reset({});
    {
        cuda::CudaBackend backend;
        auto stream = backend.make_stream(0, StreamRole::compute);
        auto event = backend.make_event(1, false);
        auto* a = static_cast<int*>(backend.allocate(0, 64));
        standin::inject_fault("add_one", 1);
        add_one(*stream, a, a, 16);
        const std::string first = message_of([&] { stream->synchronize(); });
        CHECK(first.find("cudaErrorIllegalAddress") != std::string::npos);
        CHECK(first.find("restart") != std::string::npos);
        standin::reset_counters();
        CHECK(message_of([&] { stream->synchronize(); }) == first);
        CHECK(message_of([&] { stream->fill(a, 0, 4); }) == first);
        CHECK(message_of([&] { static_cast<void>(stream->idle()); }) == first);
        CHECK(message_of([&] { static_cast<void>(event->done()); }) == first);
        CHECK(message_of([&] { static_cast<void>(backend.allocate(1, 64)); }) == first);
        CHECK(message_of([&] { static_cast<void>(backend.allocate_pinned(64)); }) == first);
        CHECK(message_of([&] { static_cast<void>(backend.make_stream(1, StreamRole::load)); }) == first);
        CHECK(message_of([&] { static_cast<void>(backend.peer_access(0, 1)); }) == first);
        CHECK(standin::counters().calls.empty());  // at once: CUDA is not asked again
        backend.release(0, a, 64);
    }
    CHECK(standin::take_mistakes().empty());
}
