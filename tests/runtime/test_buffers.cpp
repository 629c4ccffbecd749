// Device memory: reuse, counters, and out-of-memory messages.
#include "lockstep/runtime/memory.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Gate;
using lockstep::test::message_of;
using lockstep::test::serial;

namespace {

constexpr std::span<const Access> nothing;
constexpr std::size_t mib = std::size_t{1} << 20;

Stream& home() { return Stream::of(Device::cpu(0)); }

/// Removes the limit again, even if the test throws.
struct Limit {
    explicit Limit(std::size_t bytes) { set_memory_limit(Device::cpu(0), bytes); }
    ~Limit() { set_memory_limit(Device::cpu(0), 0); }
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;
};

}  // namespace

TEST_CASE("blocks are aligned, disjoint and of the requested size") {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{513}, 3 * mib + 1}) {
        const auto a = Buffer::allocate(home(), bytes, "test");
        const auto b = Buffer::allocate(home(), bytes, "test");
        CHECK(a->bytes() == bytes);
        CHECK(a->device() == Device::cpu(0));
        CHECK(&a->home() == &home());
        CHECK_FALSE(a->is_pinned());
        CHECK_FALSE(a->is_symbolic());
        CHECK(reinterpret_cast<std::uintptr_t>(a->data()) % 256 == 0);
        const auto* first = static_cast<const char*>(a->data());
        const auto* second = static_cast<const char*>(b->data());
        CHECK((first + bytes <= second || second + bytes <= first));
        home().fill(a->data(), 1, bytes);
        home().fill(b->data(), 2, bytes);
        home().synchronize();
        CHECK(std::all_of(first, first + bytes, [](char value) { return value == 1; }));
    }
}

TEST_CASE("a freed block is reused at once by its own stream, in order") {
    if (serial()) return;
    Gate gate;
    auto buffer = Buffer::allocate(home(), 5 * mib, "test");
    void* const address = buffer->data();
    home().run("hold", nothing, [&](const ExecContext&) { gate.pass(); });
    home().fill(address, 1, 16);
    buffer.reset();  // its work has not even begun: stream order suffices for safe reuse
    const auto next = Buffer::allocate(home(), 5 * mib, "test");
    CHECK(next->data() == address);
    home().fill(next->data(), 2, 16);
    gate.open();
    home().synchronize();
    CHECK(*static_cast<const char*>(next->data()) == 2);
}

TEST_CASE("a freed block is not given to another stream") {
    Stream& other = Stream::of(Device::cpu(0), StreamRole::input);
    auto buffer = Buffer::allocate(home(), 5 * mib, "test");
    void* const address = buffer->data();
    buffer.reset();
    const auto next = Buffer::allocate(other, 5 * mib, "test");
    CHECK(next->data() != address);
}

TEST_CASE("a block used on another stream is not reused before that stream is done") {
    if (serial()) return;
    Stream& other = Stream::of(Device::cpu(1));
    Gate gate;
    auto buffer = Buffer::allocate(home(), 5 * mib, "test");
    auto* const address = static_cast<char*>(buffer->data());
    home().fill(address, 1, 16);
    other.wait(home());
    char seen = 0;
    other.run("read late", nothing, [&](const ExecContext&) {
        gate.pass();
        seen = *address;
    });
    SECTION("the buffer itself") { buffer->used_on(other); }
    SECTION("a part of it") { Buffer::part(buffer, 256, 100)->used_on(other); }
    buffer.reset();
    const auto next = Buffer::allocate(home(), 5 * mib, "test");
    REQUIRE(next->data() == address);
    home().fill(next->data(), 2, 16);  // waits for the other stream
    gate.open();
    other.synchronize();
    CHECK(seen == 1);
    home().synchronize();
    CHECK(*address == 2);
}

TEST_CASE("current, peak and reserved bytes") {
    const Device device = Device::cpu(0);
    home().synchronize();
    release_cached_memory(device);
    reset_peak_memory(device);
    const MemoryStats before = memory_stats(device);
    CHECK(before.peak == before.current);
    CHECK(before.reserved >= before.current);
    CHECK(before.limit == 0);

    auto a = Buffer::allocate(home(), 4 * mib, "test");
    auto b = Buffer::allocate(home(), 8 * mib, "test");
    const auto part = Buffer::part(a, 0, mib);  // is not counted
    MemoryStats now = memory_stats(device);
    CHECK(now.current == before.current + 12 * mib);
    CHECK(now.peak == now.current);
    CHECK(now.reserved == before.reserved + 12 * mib);

    b.reset();
    now = memory_stats(device);
    CHECK(now.current == before.current + 4 * mib);
    CHECK(now.peak == before.current + 12 * mib);
    CHECK(now.reserved == before.reserved + 12 * mib);

    release_cached_memory(device);
    CHECK(memory_stats(device).reserved == before.reserved + 4 * mib);
    reset_peak_memory(device);
    CHECK(memory_stats(device).peak == before.current + 4 * mib);
    CHECK(memory_stats(Device::cpu(1)).peak < 4 * mib);

    // Rounding costs at most an eighth.
    b = Buffer::allocate(home(), 9 * mib + 1, "test");
    CHECK(memory_stats(device).current >= before.current + 13 * mib + 1);
    CHECK(memory_stats(device).current <= before.current + 4 * mib + (9 * mib + 1) * 9 / 8 + 512);
    CHECK(contains(message_of<InvalidArgument>([] { memory_stats(Device::cpu(99)); }), "cpu:99"));
    CHECK(contains(message_of<InvalidArgument>([] { set_memory_limit(Device::cpu(99), 1); }), "cpu:99"));
}

TEST_CASE("allocation beyond the limit fails with device, requested and free bytes, and the largest users") {
    const Device device = Device::cpu(0);
    const auto small = Buffer::allocate(home(), mib, "weights");
    auto large = Buffer::allocate(home(), 16 * mib, "activations");
    const std::size_t used = memory_stats(device).current;
    const Limit limit(used + 4 * mib);
    CHECK(memory_stats(device).limit == used + 4 * mib);
    const std::string text = message_of<OutOfMemory>([] { Buffer::allocate(home(), 5 * mib, "test"); });
    INFO(text);
    CHECK(contains(text, "cpu:0"));
    CHECK(contains(text, "5242880 bytes requested"));
    CHECK(contains(text, "4194304 free of a limit of " + std::to_string(used + 4 * mib)));
    CHECK(contains(text, "16777216 activations"));
    CHECK(contains(text, "1048576 weights"));
    CHECK(text.find("activations") < text.find("weights"));  // the largest first
    CHECK(contains(text, "smaller batch"));
    CHECK(memory_stats(device).current == used);

    CHECK_NOTHROW(Buffer::allocate(home(), 4 * mib, "test"));
    large.reset();
    CHECK_NOTHROW(Buffer::allocate(home(), 5 * mib, "test"));

    SECTION("a limit below current use leaves nothing free") {
        const Limit lower(mib / 2);
        CHECK(contains(message_of<OutOfMemory>([] { Buffer::allocate(home(), 1, "test"); }), " 0 free of a limit"));
    }
    SECTION("tensors also report it") { CHECK_THROWS_AS(Tensor::empty({64 << 20}, DType::u8, device), OutOfMemory); }
}

TEST_CASE("impossible sizes are rejected and do not wrap around") {
    for (const std::size_t bytes : {std::numeric_limits<std::size_t>::max(),
                                    std::numeric_limits<std::size_t>::max() / 2, (std::size_t{1} << 60) + 1}) {
        const std::string text = message_of<OutOfMemory>([&] { Buffer::allocate(home(), bytes, "test"); });
        INFO(bytes);
        CHECK(contains(text, std::to_string(bytes) + " bytes requested"));
    }
    CHECK(memory_stats(Device::cpu(0)).reserved < std::size_t{1} << 40);
}

TEST_CASE("a part keeps the whole alive and is inside it") {
    const Device device = Device::cpu(0);
    const std::size_t before = memory_stats(device).current;
    auto whole = Buffer::allocate(home(), 4 * mib, "test");
    const Buffer* const address = whole.get();
    auto* const start = static_cast<char*>(whole->data());
    auto part = Buffer::part(whole, 1000, 24);
    auto inner = Buffer::part(part, 4, 20);
    CHECK(part->data() == start + 1000);
    CHECK(part->bytes() == 24);
    CHECK(part->offset_in_whole() == 1000);
    CHECK(part->whole().get() == address);
    CHECK(inner->data() == start + 1004);
    CHECK(part->device() == device);
    CHECK(&part->home() == &home());
    whole.reset();
    part.reset();
    CHECK(memory_stats(device).current == before + 4 * mib);
    home().fill(inner->data(), 3, 20);
    home().synchronize();
    CHECK(start[1004] == 3);
    inner.reset();
    CHECK(memory_stats(device).current == before);

    const auto again = Buffer::allocate(home(), 100, "test");
    CHECK_NOTHROW(Buffer::part(again, 100, 0));
    CHECK_THROWS_AS(Buffer::part(again, 90, 11), InvalidArgument);
    CHECK_THROWS_AS(Buffer::part(again, 101, 0), InvalidArgument);
    CHECK_THROWS_AS(Buffer::part(again, std::numeric_limits<std::size_t>::max(), 2), InvalidArgument);
    CHECK_THROWS_AS(Buffer::part(nullptr, 0, 0), InvalidArgument);
}

TEST_CASE("pinned memory is host memory and lives until copies from it are done") {
    auto pinned = Buffer::allocate_pinned(1000);
    CHECK(pinned->is_pinned());
    CHECK(pinned->device().is_host());
    CHECK(pinned->bytes() == 1000);
    CHECK(Buffer::part(pinned, 10, 10)->is_pinned());
    CHECK_NOTHROW(Buffer::allocate_pinned(0));

    auto* const values = static_cast<unsigned char*>(pinned->data());
    for (unsigned i = 0; i < 1000; ++i) values[i] = static_cast<unsigned char>(i);
    const auto target = Buffer::allocate(home(), 1000, "test");
    home().run("late", nothing, [](const ExecContext&) {});
    home().copy(target->data(), Device::cpu(0), values, Device::host(), 1000);
    pinned->used_on(home());
    pinned.reset();  // waits
    home().synchronize();
    const auto* copied = static_cast<const unsigned char*>(target->data());
    for (unsigned i = 0; i < 1000; ++i)
        if (copied[i] != static_cast<unsigned char>(i)) FAIL("byte " << i);
}

TEST_CASE("a worker frees memory while another thread releases cached memory") {
    if (test::serial()) return;
    Stream& stream = Stream::of(Device::cpu(0), StreamRole::compute, 3);
    { const auto cached = Buffer::allocate(stream, mib, "test"); }  // release must wait for this stream
    auto captured = Buffer::allocate(stream, 2 * mib, "test");
    test::Gate release_waits;
    stream.run("hold", {}, [&release_waits, captured = std::move(captured)](const ExecContext&) mutable {
        release_waits.pass();
        captured.reset();  // takes the pool's lock, which must be free
    });
    std::thread releasing([] { release_cached_memory(Device::cpu(0)); });
    release_waits.open();
    releasing.join();
    stream.synchronize();
    CHECK(memory_stats(Device::cpu(0)).reserved >= memory_stats(Device::cpu(0)).current);
}
