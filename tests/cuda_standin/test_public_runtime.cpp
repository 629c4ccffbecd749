// Streams, events, copies and memory of CUDA devices through the public headers, on the stand-in and on GPUs.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/runtime/transfer.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

const Device host, gpu0 = Device::cuda(0), gpu1 = Device::cuda(1);

struct Checked {
    Checked() { test::set_delays(9, 200); }
    ~Checked() {
        test::set_delays(0, 0);
        test::check_no_mistakes();
    }
    Checked(const Checked&) = delete;
    Checked& operator=(const Checked&) = delete;
};

std::vector<std::int32_t> numbers(int count) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), 1);
    return values;
}

}  // namespace

TEST_CASE("tensors move between GPUs and CPU devices by streams of the GPU") {
    const Checked checked;
    const Device cpu = Device::cpu(0);
    const auto input = numbers(1000);
    const Tensor on_gpu = Tensor::from(input, {1000}, gpu0);
    const Tensor on_cpu = on_gpu.to(cpu);  // waits for the values
    CHECK(on_cpu.device() == cpu);
    CHECK(on_cpu.to_vector<std::int32_t>() == input);
    CHECK((on_gpu + on_gpu).to(cpu).to_vector<std::int32_t>()[999] == 2000);
    CHECK((on_cpu + on_cpu).to(gpu1).to_vector<std::int32_t>()[999] == 2000);

    const Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3}, gpu0).requires_grad_();
    (x.to(cpu) * 2.0).to(gpu1).backward(Tensor::from(std::vector<float>{1, 10, 100}, {3}, gpu1));
    CHECK(x.grad().device() == gpu0);
    CHECK(x.grad().to_vector<float>() == std::vector<float>{2, 20, 200});

    // Memory of a GPU looks like the host's on the stand-in, so that only this check finds such a copy there.
    Stream& stream = Stream::of(cpu);
    std::vector<std::int32_t> values(10);
    const auto memory = Buffer::allocate(Stream::of(gpu0), 40, "test"), own = Buffer::allocate(stream, 40, "test");
    const auto copy = [&] { stream.copy(own->data(), cpu, memory->data(), gpu0, 40); };
    CHECK(test::contains(test::message_of<InvalidArgument>(copy), "CPU devices cannot access the memory of a GPU"));
    const auto copy_back = [&] { stream.copy_2d(memory->data(), 20, gpu0, own->data(), 20, cpu, 20, 2); };
    CHECK(test::contains(test::message_of<InvalidArgument>(copy_back), "expected a stream of the GPU"));
}

TEST_CASE("events order streams of two GPUs and measure time") {
    const Checked checked;
    Stream &first = Stream::of(gpu0), &second = Stream::of(gpu1, StreamRole::reduce);
    CHECK(first.name() == "cuda:0/compute0");
    const auto a = Buffer::allocate(first, 400, "a"), b = Buffer::allocate(second, 400, "b");
    const auto input = numbers(100);
    std::vector<std::int32_t> output(100);
    Event begin(gpu0, true), end(gpu0, true), other(gpu1);
    CHECK(begin.done());
    CHECK_THROWS_AS(Event::elapsed_ms(begin, end), InvalidArgument);
    const auto host_begin = std::chrono::steady_clock::now();
    first.record(begin);
    first.copy(a->data(), gpu0, input.data(), host, 400);
    first.record(end);
    second.wait(end);
    second.copy(b->data(), gpu1, a->data(), gpu0, 400);
    second.copy(output.data(), host, b->data(), gpu1, 400);
    second.record(other);
    other.synchronize();
    CHECK(output == input);
    CHECK(end.done());
    CHECK(Event::elapsed_ms(begin, end) >= 0);
    const std::chrono::duration<double, std::milli> on_host = std::chrono::steady_clock::now() - host_begin;
    CHECK(Event::elapsed_ms(begin, end) <= on_host.count() + 0.1);  // a GPU has its own clock
    second.fill(b->data(), 0x7f, 400);
    second.synchronize();
    CHECK(second.idle());
    second.copy(output.data(), host, b->data(), gpu1, 400);
    second.synchronize();
    CHECK(output[99] == 0x7f7f7f7f);
}

TEST_CASE("pitched copies from host to GPU, GPU to GPU and GPU to host") {
    const Checked checked;
    Stream &first = Stream::of(gpu0), &second = Stream::of(gpu1);
    const auto a = Buffer::allocate(first, 4 * 32, "a"), b = Buffer::allocate(second, 4 * 20, "b");
    const auto input = numbers(24);  // four rows of six
    std::vector<std::int32_t> output(4 * 3, 0);
    first.copy_2d(a->data(), 32, gpu0, input.data(), 24, host, 24, 4);
    first.synchronize();
    second.copy_2d(b->data(), 20, gpu1, static_cast<char*>(a->data()) + 4, 32, gpu0, 16, 4);      // columns 1 to 4
    second.copy_2d(output.data(), 12, host, static_cast<char*>(b->data()) + 4, 20, gpu1, 12, 4);  // 2 to 4 of them
    second.synchronize();
    for (std::size_t row = 0; row < 4; ++row)
        for (std::size_t column = 0; column < 3; ++column)
            CHECK(output[row * 3 + column] == input[row * 6 + column + 2]);
    CHECK_THROWS_AS(first.copy_2d(a->data(), 8, gpu0, input.data(), 24, host, 24, 2), InvalidArgument);
    CHECK_THROWS_AS(first.copy(b->data(), gpu1, input.data(), host, 4), InvalidArgument);  // for another GPU
}

TEST_CASE("undeclared access to another GPU's memory is rejected before CUDA gets the work") {
    const Checked checked;
    Stream& first = Stream::of(gpu0);
    const auto b = Buffer::allocate(Stream::of(gpu1), 64, "b");
    const Access writes[] = {{b->data(), 64, gpu1, Access::Mode::write}};
    bool ran = false;
    CHECK_THROWS_AS(first.run("write", writes, [&](const ExecContext&) { ran = true; }), InvalidArgument);
    CHECK_FALSE(ran);
}

TEST_CASE("memory statistics, cache, limit, and errors when memory runs out") {
    const Checked checked;
    Stream& stream = Stream::of(gpu1);
    release_cached_memory(gpu1);
    const MemoryStats before = memory_stats(gpu1);
    {
        const auto a = Buffer::allocate(stream, 1 << 20, "weights");
        CHECK(memory_stats(gpu1).current == before.current + (1 << 20));
        reset_peak_memory(gpu1);
        const auto more = Buffer::allocate(stream, 1 << 20, "more");
    }
    CHECK(memory_stats(gpu1).current == before.current);
    CHECK(memory_stats(gpu1).peak == before.current + (2 << 20));
    CHECK(memory_stats(gpu1).reserved == before.reserved + (2 << 20));
    { const auto again = Buffer::allocate(stream, 1 << 20, "weights"); }
    CHECK(memory_stats(gpu1).reserved == before.reserved + (2 << 20));  // from the cache
    release_cached_memory(gpu1);
    CHECK(memory_stats(gpu1).reserved == before.reserved);

    const auto held = Buffer::allocate(stream, 4096, "weights");
    const auto message = [&](std::size_t bytes) -> std::string {
        try {
            const auto none = Buffer::allocate(stream, bytes, "none");
        } catch (const OutOfMemory& error) {
            return error.what();
        }
        return {};
    };
    set_memory_limit(gpu1, memory_stats(gpu1).current + 1024);
    const std::string limited = message(2048);
    for (const char* part : {"cuda:1", "2048 bytes requested", "1024 free of a limit", "4096 weights"})
        CHECK(limited.find(part) != std::string::npos);
    set_memory_limit(gpu1, 0);
    CHECK(message(std::size_t{1} << 45).find("out of memory on cuda:1") == 0);
    CHECK(message(2048).empty());
}

TEST_CASE("tensors are copied to GPUs, between them and back, including strided ones") {
    const Checked checked;
    manual_seed(2);
    const Tensor x = Tensor::rand({5, 7});
    const Tensor there = x.to(gpu0).transpose(0, 1).to(gpu1);
    CHECK(there.device() == gpu1);
    const auto expected = x.to_vector<float>(), found = there.to_vector<float>();
    for (std::size_t i = 0; i < 5; ++i)
        for (std::size_t j = 0; j < 7; ++j) CHECK(found[j * 5 + i] == expected[i * 7 + j]);
    CHECK_THROWS_AS(require_visible(Device::cuda(device_count(DeviceKind::cuda))), InvalidArgument);
}

TEST_CASE("a tensor moves between GPUs while both compute, and its gradient is returned") {
    const Checked checked;
    const Tensor x = Tensor::full({1000}, 3, DType::f32, gpu0).requires_grad_();
    for (int round = 0; round < 20; ++round) {
        const Transfer transfer(x.clone(), gpu1);
        const Tensor other = Tensor::full({1000}, round, DType::f32, gpu1);
        const Tensor there = transfer.tensor();
        CHECK(there.device() == gpu1);
        CHECK(there.to_vector<float>() == std::vector<float>(1000, 3));
        CHECK(other.to_vector<float>() == std::vector<float>(1000, static_cast<float>(round)));
        x.set_grad(Tensor());
        there.backward(other);
        CHECK(x.grad().device() == gpu0);
        CHECK(x.grad().to_vector<float>() == std::vector<float>(1000, static_cast<float>(round)));
    }
    { const Transfer unused(x, gpu1); }
    CHECK(Tensor::full({1000}, 5, DType::f32, gpu1).to_vector<float>() == std::vector<float>(1000, 5));
}
