// The CUDA backend, on the stand-in and on GPUs: streams, events, copies and memory.
#include <functional>
#include <thread>

#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/gpu/machine.h"
#include "lockstep/tests/runtime/cuda_memory.h"

using namespace lockstep;
using test::Memory;
using test::message_of;
using test::numbers;

namespace {

/// A backend of a machine with at least this many devices; checks that the backend makes no mistake.
struct Machine {
    explicit Machine(int devices = 2) { test::start_with_devices(devices); }
    ~Machine() { test::check_no_mistakes(); }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    cuda::CudaBackend backend;
};

/// to = from + 1 by a kernel.
void add_one(StreamImpl& stream, int* to, const int* from, std::int64_t n) {
    stream.run([=](const ExecContext& context) { test::add_one(context, to, from, n); }, 1);
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

TEST_CASE("pinned memory is page-locked and can be copied") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::input);
    const Memory a(m, 0, 64);
    auto* pinned = static_cast<int*>(m.backend.allocate_pinned(64 * sizeof(int)));
    std::iota(pinned, pinned + 64, 3);
    CHECK(test::is_pinned(pinned));
    stream->copy(a.data, Device::cuda(0), pinned, host, a.bytes);
    stream->copy(pinned, host, a.data, Device::cuda(0), a.bytes);
    stream->synchronize();
    CHECK(pinned[63] == 66);
    m.backend.release_pinned(pinned, 64 * sizeof(int));
}

TEST_CASE("an event orders streams of two devices, and an event of another kind makes the host wait") {
    Machine m;
    const auto first = m.backend.make_stream(0, StreamRole::compute);
    const auto second = m.backend.make_stream(1, StreamRole::compute);
    const auto ready = m.backend.make_event(0, false);
    second->wait(*ready);  // never recorded: no wait
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

TEST_CASE("events do not measure time by default") {
    Machine m;
    const auto stream = m.backend.make_stream(0, StreamRole::compute);
    const auto first = m.backend.make_event(0, false), second = m.backend.make_event(0, false);
    stream->record(*first);
    stream->record(*second);
    stream->synchronize();
    CHECK(message_of<DeviceError>([&] { (void)second->elapsed_ms_since(*first); }).find("cudaEventElapsedTime") == 0);
    CHECK(test::take_mistakes().size() == (test::on_standin() ? 1 : 0));
}

TEST_CASE("callbacks run in stream order, and synchronize throws their exceptions") {
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

TEST_CASE("a failed allocation is null, not an error") {
    Machine m;
    CHECK(m.backend.allocate(1, std::size_t{1} << 45) == nullptr);
    const Memory a(m, 1, 16);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data) % 256 == 0);
}

// In a separate process: the context is lost permanently.
TEST_CASE("after a lost context every call throws and destructors return", "[.lost]") {
    test::start_with_devices(2);
    {
        cuda::CudaBackend backend;
        auto stream = backend.make_stream(0, StreamRole::compute);
        auto event = backend.make_event(1, false);
        auto* a = static_cast<int*>(backend.allocate(0, 64));
        stream->run(test::write_nowhere, 1);
        const std::string first = message_of<DeviceError>([&] { stream->synchronize(); });
        CHECK(first.find("cudaErrorIllegalAddress") != std::string::npos);
        CHECK(first.find("restart") != std::string::npos);
        CHECK(message_of<DeviceError>([&] { stream->synchronize(); }) == first);
        CHECK(message_of<DeviceError>([&] { stream->fill(a, 0, 4); }) == first);
        CHECK(message_of<DeviceError>([&] { static_cast<void>(stream->idle()); }) == first);
        CHECK(message_of<DeviceError>([&] { static_cast<void>(event->done()); }) == first);
        CHECK(message_of<DeviceError>([&] { static_cast<void>(backend.allocate(1, 64)); }) == first);
        CHECK(message_of<DeviceError>([&] { static_cast<void>(backend.allocate_pinned(64)); }) == first);
        CHECK(message_of<DeviceError>([&] { static_cast<void>(backend.make_stream(1, StreamRole::input)); }) == first);
        CHECK(message_of<DeviceError>([&] { static_cast<void>(backend.peer_access(0, 1)); }) == first);
        backend.release(0, a, 64);
    }
    CHECK(test::take_mistakes().empty());
}
