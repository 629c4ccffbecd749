// Streams and events: order, rejected calls, and reporting of failures.
#include "lockstep/runtime/stream.h"

#include <array>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"
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

Stream& first() { return Stream::of(Device::cpu(0)); }
Stream& second() { return Stream::of(Device::cpu(1)); }

/// `bytes` bytes of a device holding `values`.
std::shared_ptr<Buffer> filled(Stream& stream, const std::vector<std::uint8_t>& values) {
    auto buffer = Buffer::allocate(stream, values.size(), "test");
    stream.copy(buffer->data(), stream.device(), values.data(), Device::host(), values.size());
    stream.synchronize();
    return buffer;
}

std::vector<std::uint8_t> read_back(Stream& stream, const Buffer& buffer) {
    std::vector<std::uint8_t> values(buffer.bytes());
    stream.copy(values.data(), Device::host(), buffer.data(), buffer.device(), buffer.bytes());
    stream.synchronize();
    return values;
}

std::vector<std::uint8_t> pattern(std::size_t count, int start = 0) {
    std::vector<std::uint8_t> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint8_t>(7 * i + static_cast<unsigned>(start));
    return values;
}

}  // namespace

TEST_CASE("a stream has a name and is one object per device, role and index") {
    CHECK(&Stream::of(Device::cpu(1)) == &second());
    CHECK(&Stream::of(Device::cpu(1), StreamRole::compute, 1) != &second());
    CHECK(&Stream::of(Device::cpu(1), StreamRole::input) != &second());
    CHECK(second().name() == "cpu:1/compute0");
    CHECK(Stream::of(Device::cpu(0), StreamRole::reduce, 2).name() == "cpu:0/reduce2");
    CHECK(second().device() == Device::cpu(1));
    CHECK(first().id() != second().id());

    CHECK(contains(message_of<InvalidArgument>([] { Stream::of(Device::cpu(99)); }), "cpu:99"));
    CHECK(contains(message_of<InvalidArgument>([] { Stream::of(Device::cpu(0), StreamRole::compute, -1); }), "-1"));
    CHECK(contains(message_of<InvalidArgument>([] { Event event(Device::cpu(99)); }), "cpu:99"));
}

TEST_CASE("work of one stream runs in the order in which it was enqueued") {
    std::vector<int> seen;  // deliberately without a lock
    for (int i = 0; i < 5000; ++i)
        first().run("append", nothing, [&seen, i](const ExecContext&) { seen.push_back(i); });
    first().synchronize();
    CHECK(first().idle());
    std::vector<int> expected(5000);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(seen == expected);
}

TEST_CASE("work gets its device, and runs on a separate thread with the requested number of threads") {
    Device where;
    std::thread::id worker;
    second().run("look", nothing, [&](const ExecContext& context) {
        where = context.device;
        worker = std::this_thread::get_id();
    });
    second().synchronize();
    CHECK(where == Device::cpu(1));
    if (!serial()) CHECK(worker != std::this_thread::get_id());
}

TEST_CASE("an event orders streams of two devices") {
    if (serial()) return;
    Gate gate;
    int value = 0;
    int seen = -1;
    Event written(Device::cpu(0), true);
    first().run("write", nothing, [&](const ExecContext&) {
        gate.pass();
        value = 42;
    });
    first().record(written);
    second().wait(written);
    second().run("read", nothing, [&](const ExecContext&) { seen = value; });
    CHECK_FALSE(written.done());
    CHECK_FALSE(first().idle());
    CHECK_FALSE(second().idle());
    CHECK(contains(message_of<InvalidArgument>([&] { Event::elapsed_ms(written, written); }), "not been reached"));
    gate.open();
    second().synchronize();
    CHECK(seen == 42);
    CHECK(written.done());
    first().synchronize();
}

TEST_CASE("a wait applies to the latest record before it") {
    if (serial()) return;
    Gate gate;
    Event event(Device::cpu(0));
    first().record(event);
    event.synchronize();
    second().wait(event);  // the first record, regardless of later ones
    first().run("hold", nothing, [&](const ExecContext&) { gate.pass(); });
    first().record(event);
    bool ran = false;
    second().run("not held", nothing, [&](const ExecContext&) { ran = true; });
    second().synchronize();
    CHECK(ran);
    CHECK_FALSE(event.done());
    gate.open();
    event.synchronize();
    CHECK(event.done());
}

TEST_CASE("an event that was never recorded is done, waits for nothing, and has no time") {
    const Event never(Device::cpu(0), true);
    Event once(Device::cpu(0), true), untimed(Device::cpu(0));
    CHECK(never.done());
    never.synchronize();
    second().wait(never);
    second().synchronize();
    first().record(once);
    once.synchronize();
    CHECK(contains(message_of<InvalidArgument>([&] { Event::elapsed_ms(never, once); }), "never recorded"));
    CHECK(contains(message_of<InvalidArgument>([&] { Event::elapsed_ms(once, never); }), "never recorded"));
    first().record(untimed);
    untimed.synchronize();
    CHECK(contains(message_of<InvalidArgument>([&] { Event::elapsed_ms(once, untimed); }), "is not timed"));
    CHECK(contains(message_of<InvalidArgument>([&] { Event::elapsed_ms(untimed, once); }), "Event(device, true)"));
    CHECK(contains(message_of<InvalidArgument>([&] { second().record(once); }), "cpu:0"));
}

TEST_CASE("elapsed time is that between the two points") {
    Event start(Device::cpu(0), true), end(Device::cpu(0), true);
    const auto begin = std::chrono::steady_clock::now();
    first().record(start);
    first().run("sleep", nothing,
                [](const ExecContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
    first().record(end);
    end.synchronize();
    const std::chrono::duration<double, std::milli> on_host = std::chrono::steady_clock::now() - begin;
    CHECK(Event::elapsed_ms(start, end) >= 30);
    CHECK(Event::elapsed_ms(start, end) <= on_host.count() + 0.001);
    CHECK(Event::elapsed_ms(start, start) == 0);
    CHECK(Event::elapsed_ms(end, start) <= -30);
}

TEST_CASE("an event may be destroyed while work still waits for it") {
    if (serial()) return;
    Gate gate;
    bool ran = false;
    {
        Event event(Device::cpu(0));
        first().run("hold", nothing, [&](const ExecContext&) { gate.pass(); });
        first().record(event);
        second().wait(event);
        second().run("after", nothing, [&](const ExecContext&) { ran = true; });
    }
    gate.open();
    second().synchronize();
    CHECK(ran);
}

TEST_CASE("waiting for a stream covers all its work so far, and no more") {
    if (serial()) return;
    Gate gate, later;
    int value = 0;
    int seen = -1;
    first().run("write", nothing, [&](const ExecContext&) {
        gate.pass();
        value = 7;
    });
    second().wait(first());
    second().wait(second());
    first().run("later", nothing, [&](const ExecContext&) { later.pass(); });
    second().run("read", nothing, [&](const ExecContext&) { seen = value; });
    gate.open();
    second().synchronize();
    CHECK(seen == 7);
    CHECK_FALSE(first().idle());
    later.open();
    first().synchronize();
}

TEST_CASE("devices work at the same time, and each ends only after the other has begun") {
    if (serial()) return;
    Gate begun[2];
    first().run("zero", nothing, [&](const ExecContext&) {
        begun[0].open();
        begun[1].pass();
    });
    second().run("one", nothing, [&](const ExecContext&) {
        begun[1].open();
        begun[0].pass();
    });
    CHECK_NOTHROW(synchronize_all());
}

TEST_CASE("two streams of one device do not wait for each other") {
    if (serial()) return;
    Gate gate;
    Stream& load = Stream::of(Device::cpu(0), StreamRole::input);
    first().run("hold", nothing, [&](const ExecContext&) { gate.pass(); });
    bool ran = false;
    load.run("free", nothing, [&](const ExecContext&) { ran = true; });
    load.synchronize();
    CHECK(ran);
    gate.open();
    first().synchronize();
}

TEST_CASE("callbacks run in stream order") {
    std::vector<int> order;
    first().run("one", nothing, [&](const ExecContext&) { order.push_back(1); });
    first().callback([&] { order.push_back(2); });
    first().run("three", nothing, [&](const ExecContext&) { order.push_back(3); });
    first().synchronize();
    CHECK(order == std::vector<int>{1, 2, 3});
    CHECK(contains(message_of<InvalidArgument>([] { first().callback({}); }), "cpu:0/compute0"));
    CHECK(contains(message_of<InvalidArgument>([] { first().run("empty", nothing, {}); }), "empty"));
}

TEST_CASE("copies between host, pinned memory and devices") {
    const std::vector<std::uint8_t> values = pattern(100003);
    const auto pinned = Buffer::allocate_pinned(values.size());
    CHECK(pinned->is_pinned());
    CHECK(pinned->device().is_host());
    const auto a = Buffer::allocate(first(), values.size(), "test");
    const auto b = Buffer::allocate(second(), values.size(), "test");
    std::copy(values.begin(), values.end(), static_cast<std::uint8_t*>(pinned->data()));
    first().copy(a->data(), Device::cpu(0), pinned->data(), Device::host(), values.size());
    CHECK(read_back(first(), *a) == values);
    SECTION("pulled by the receiver") {
        second().wait(first());
        second().copy(b->data(), Device::cpu(1), a->data(), Device::cpu(0), values.size());
    }
    SECTION("pushed by the sender") {
        first().wait(second());
        first().copy(b->data(), Device::cpu(1), a->data(), Device::cpu(0), values.size());
        second().wait(first());
    }
    CHECK(read_back(second(), *b) == values);
    first().wait(second());
    first().synchronize();
    CHECK_NOTHROW(first().copy(nullptr, Device::cpu(0), nullptr, Device::host(), 0));
}

TEST_CASE("a copy needs one side on the stream's device") {
    const auto a = filled(first(), pattern(64));
    std::array<std::uint8_t, 64> host{};
    const std::string text = message_of<InvalidArgument>(
        [&] { second().copy(host.data(), Device::host(), a->data(), Device::cpu(0), host.size()); });
    CHECK(contains(text, "cpu:0"));
    CHECK(contains(text, "cpu:1/compute0"));
    CHECK(first().idle());
}

TEST_CASE("2-D copies support both pitches and do not write the gaps") {
    constexpr std::size_t rows = 9, row = 13, from_pitch = 20, to_pitch = 17;
    const std::vector<std::uint8_t> source = pattern(rows * from_pitch);
    std::vector<std::uint8_t> expected(rows * to_pitch, 0xEE);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < row; ++c) expected[r * to_pitch + c] = source[r * from_pitch + c];
    const auto from = filled(first(), source);
    const auto to = filled(second(), std::vector<std::uint8_t>(rows * to_pitch, 0xEE));
    second().wait(first());
    second().copy_2d(to->data(), to_pitch, Device::cpu(1), from->data(), from_pitch, Device::cpu(0), row, rows);
    CHECK(read_back(second(), *to) == expected);

    const std::string text = message_of<InvalidArgument>(
        [&] { second().copy_2d(to->data(), 12, Device::cpu(1), from->data(), from_pitch, Device::cpu(0), row, rows); });
    CHECK(contains(text, "13"));
    CHECK(contains(text, "12"));
}

TEST_CASE("fill sets every byte and no other") {
    const auto buffer = filled(first(), std::vector<std::uint8_t>(1000, 1));
    first().fill(static_cast<std::uint8_t*>(buffer->data()) + 10, 0xAB, 900);
    const std::vector<std::uint8_t> values = read_back(first(), *buffer);
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != (i >= 10 && i < 910 ? 0xAB : 1)) FAIL("byte " << i);
}

TEST_CASE("work on another device's memory is rejected unless it is a declared read of a peer's") {
    const auto foreign = filled(second(), pattern(64));
    first().wait(second());
    bool ran = false;
    const auto use = [&](Access::Mode mode, Device owner) {
        ran = false;
        const Access access[] = {{foreign->data(), 64, owner, mode}};
        first().run("touch", access, [&](const ExecContext&) { ran = true; });
        first().synchronize();
    };
    for (const auto mode : {Access::Mode::read, Access::Mode::write}) {
        const std::string text = message_of<InvalidArgument>([&] { use(mode, Device::cpu(1)); });
        CHECK(contains(text, "touch"));
        CHECK(contains(text, "cpu:0/compute0"));
        CHECK(contains(text, "cpu:1"));
        CHECK_FALSE(ran);
    }
    CHECK_NOTHROW(use(Access::Mode::peer_read, Device::cpu(1)));
    CHECK(ran);
    second().wait(first());
    second().synchronize();
}

TEST_CASE("synchronize throws exceptions of work, later work is skipped, and the stream continues") {
    if (serial()) return;
    bool skipped = true;
    bool other = false;
    Gate gate;
    first().run("throw", nothing, [&](const ExecContext&) {
        gate.pass();
        throw DeviceError("planted");
    });
    first().run("after", nothing, [&](const ExecContext&) { skipped = false; });
    second().wait(first());  // must not wait forever
    second().run("other", nothing, [&](const ExecContext&) { other = true; });
    gate.open();
    CHECK(message_of<DeviceError>([] { first().synchronize(); }) == "planted");
    CHECK(skipped);
    CHECK_NOTHROW(second().synchronize());
    CHECK(other);
    CHECK_NOTHROW(first().synchronize());
    bool usable = false;
    first().run("usable", nothing, [&](const ExecContext&) { usable = true; });
    CHECK_NOTHROW(first().synchronize());
    CHECK(usable);

    first().run("again", nothing, [](const ExecContext&) { throw DeviceError("first"); });
    second().run("again", nothing, [](const ExecContext&) { throw DeviceError("second"); });
    CHECK_THROWS_AS(synchronize_all(), DeviceError);
    CHECK_NOTHROW(synchronize_all());
}

TEST_CASE("the host's stream works at once, and waits for devices on the calling thread") {
    Stream& host = Stream::of(Device::host());
    CHECK(host.name() == "host/compute0");
    bool ran = false;
    host.run("now", nothing, [&](const ExecContext&) { ran = true; });
    CHECK(ran);
    CHECK(host.idle());
    Event event(Device::host());
    host.record(event);
    CHECK(event.done());
    second().wait(event);
    int value = 0;
    first().run("slow", nothing, [&](const ExecContext&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        value = 5;
    });
    host.wait(first());
    CHECK(value == 5);
    CHECK_THROWS_AS(host.run("throw", nothing, [](const ExecContext&) { throw DeviceError("at once"); }), DeviceError);
    host.synchronize();
    second().synchronize();
}

TEST_CASE("thousands of tasks over many streams are ordered by events only") {
    std::vector<Stream*> streams;
    for (int d = 0; d < 2; ++d)
        for (const StreamRole role : {StreamRole::compute, StreamRole::reduce, StreamRole::commit})
            for (int i = 0; i < 2; ++i) streams.push_back(&Stream::of(Device::cpu(d), role, i));
    std::minstd_rand random(7);
    std::vector<int> order;  // no lock: each task waits for the previous one, on any stream
    std::vector<Event> events;
    for (const Stream* stream : streams) events.emplace_back(stream->device());
    std::size_t previous = 0;
    for (int i = 0; i < 6000; ++i) {
        const std::size_t at = random() % streams.size();
        if (at != previous) {
            streams[previous]->record(events[previous]);
            streams[at]->wait(events[previous]);
        }
        streams[at]->run("append", nothing, [&order, i](const ExecContext&) { order.push_back(i); });
        previous = at;
    }
    synchronize_all();
    std::vector<int> expected(6000);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(order == expected);
}
