// The CUDA backend on machines with several GPUs, with and without peer access, with logical devices, and without a
// driver.

#include "lockstep/tests/cuda_standin/standin_machine.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::Memory;
using test::message_of;
using test::numbers;
using Machine = test::StandinMachine;

namespace {

const Device host;

/// to = from + 1 by a kernel.
void add_one(StreamImpl& stream, int* to, const int* from, std::int64_t n) {
    stream.run([=](const ExecContext& context) { test::add_one(context, to, from, n); }, 1);
}

}  // namespace

TEST_CASE("peer access is enabled once per pair, for kernel reads and direct copies") {
    Machine m(3);
    CHECK(m.backend.peer_access(1, 0));  // access is possible
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

TEST_CASE("cards without peer access copy through the host, whole and by rows") {
    Machine m(2, nullptr, false);
    CHECK_FALSE(m.backend.peer_access(1, 0));
    const auto stream = m.backend.make_stream(0, StreamRole::reduce);
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
    second->run([](const ExecContext& context) { CHECK(context.device == Device::cuda(5)); }, 1);
}

TEST_CASE("a malformed number of logical devices is an error, every time") {
    for (const char* text : {"0", "-1", "two", "65", "4x"}) {
        Machine m(1, text);
        CHECK_THROWS_AS(m.backend.device_count(), InvalidArgument);
        CHECK_THROWS_AS(m.backend.device_count(), InvalidArgument);
    }
}

TEST_CASE("without a driver, with an old driver, or without a GPU there are no devices, and the reason is given") {
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
