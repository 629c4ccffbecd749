// Calls of the CUDA backend and its handling of errors: on the stand-in, which counts and rejects calls.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "lockstep/tests/cuda_standin/standin_machine.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::Memory;
using test::message_of;
using test::numbers;
using Machine = test::StandinMachine;

namespace {

const Device host;

}  // namespace

TEST_CASE("pinned memory is copied without a wait by the host") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::input);
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

TEST_CASE("device memory is allocated on its GPU") {
    Machine m;
    CHECK(m.backend.allocate(1, std::size_t{9} << 30) == nullptr);
    const Memory a(m, 1, 16);
    CHECK(standin::counters().devices[1].bytes_in_use >= a.bytes);
}

TEST_CASE("objects are destroyed while another device is current, and the caller's device stays current") {
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

TEST_CASE("a failed call names itself, its status, the device and the location, and the backend stays usable") {
    Machine m;
    const auto stream = m.backend.make_stream(1, StreamRole::compute);
    const Memory a(m, 1, 16);
    const auto input = numbers(16);
    standin::inject_failure("cudaMemcpyAsync", 1, cudaErrorInvalidValue);
    const std::string message =
        message_of<DeviceError>([&] { stream->copy(a.data, Device::cuda(1), input.data(), host, a.bytes); });
    for (const char* part : {"cudaMemcpyAsync", "cudaErrorInvalidValue", "device 1", "cuda_stream.cpp:"})
        CHECK(message.find(part) != std::string::npos);
    standin::inject_failure("cudaStreamSynchronize", 1, cudaErrorNotSupported);
    CHECK_THROWS_AS(stream->synchronize(), DeviceError);
    stream->copy(a.data, Device::cuda(1), input.data(), host, a.bytes);
    stream->synchronize();
}

TEST_CASE("a child of a process that has used the driver makes no call, and destructors return") {
    Machine m;
    auto stream = m.backend.make_stream(0, StreamRole::compute);
    auto event = m.backend.make_event(0, false);
    const pid_t child = ::fork();
    if (child == 0) {
        const std::string text =
            "CUDA: cuda:0 was in use when this process was forked, and is not usable in the child; expected fork "
            "before devices are used, or exec after it";
        standin::reset_counters();
        int wrong = 0;
        for (const std::function<void()>& call : std::vector<std::function<void()>>{
                 [&] { stream->synchronize(); }, [&] { stream->record(*event); },
                 [&] { static_cast<void>(m.backend.allocate(1, 64)); },
                 [&] { static_cast<void>(m.backend.allocate_pinned(64)); },
                 [&] { static_cast<void>(m.backend.make_stream(1, StreamRole::input)); }}) {
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

// In a separate process: the context is lost permanently.
TEST_CASE("after a lost context CUDA is not called again", "[.lost_calls]") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::compute);
    stream->run(test::write_nowhere, 1);
    CHECK_THROWS_AS(stream->synchronize(), DeviceError);
    standin::reset_counters();
    CHECK_THROWS_AS(stream->synchronize(), DeviceError);
    CHECK_THROWS_AS(stream->idle(), DeviceError);
    CHECK_THROWS_AS(m.backend.allocate(1, 64), DeviceError);
    CHECK(standin::counters().calls.empty());
}
