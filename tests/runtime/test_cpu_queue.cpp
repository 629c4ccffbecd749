// Who serves the queues of CPU streams: their own threads, and those of computing streams that wait.
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using lockstep::testing::Gate;
using lockstep::testing::serial;

namespace {

constexpr std::span<const Access> nothing;

Stream& compute(int index) { return Stream::of(Device::cpu(0), StreamRole::compute, index); }
Stream& commit() { return Stream::of(Device::cpu(0), StreamRole::commit); }

std::thread::id thread_of(Stream& stream) {
    std::thread::id id;
    stream.run("who", nothing, [&](const Launch&) { id = std::this_thread::get_id(); });
    stream.synchronize();
    return id;
}

}  // namespace

TEST_CASE("the thread of a computing stream that waits serves others") {
    if (serial()) return;
    const std::thread::id computing = thread_of(compute(0));
    Event ready(Device::cpu(0)), done(Device::cpu(0));
    bool helped = false;
    // Whether it has begun to wait in time is a matter of luck; that it never serves is not.
    for (int i = 0; i < 2000 && !helped; ++i) {
        std::thread::id served;
        compute(1).run("prepare", nothing, [](const Launch&) {
            const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
            while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
        });
        compute(1).record(ready);
        commit().wait(ready);
        commit().run("update", nothing, [&](const Launch&) { served = std::this_thread::get_id(); });
        commit().record(done);
        compute(0).run("wake up", nothing, [](const Launch&) {});
        compute(0).wait(done);
        compute(0).synchronize();
        commit().synchronize();
        helped = served == computing;
    }
    CHECK(helped);
}

TEST_CASE("a queue that was left to helpers is served though all of them are held up") {
    if (serial()) return;
    const int lanes = usable_cores() + 1;
    const bool by_event = GENERATE(false, true);
    Gate gate;
    std::atomic<int> held{0};
    for (int i = 0; i < lanes; ++i)
        compute(i).run("hold", nothing, [&](const Launch&) {
            ++held;
            gate.pass();
        });
    while (held < lanes) std::this_thread::yield();
    commit().run("let go", nothing, [&](const Launch&) { gate.open(); });
    Event opened(Device::cpu(0));
    commit().record(opened);
    if (by_event)
        opened.synchronize();
    else
        commit().synchronize();
    CHECK_NOTHROW(synchronize_all());
}

TEST_CASE("work that fails on a helper's thread is reported by the stream that it was given to") {
    if (serial()) return;
    Event ready(Device::cpu(0)), done(Device::cpu(0));
    for (int i = 0; i < 50; ++i) {
        compute(1).run("prepare", nothing, [](const Launch&) { std::this_thread::yield(); });
        compute(1).record(ready);
        commit().wait(ready);
        commit().run("update", nothing, [](const Launch&) { throw DeviceError("planted"); });
        commit().record(done);
        compute(0).run("wake up", nothing, [](const Launch&) {});
        compute(0).wait(done);
        CHECK_NOTHROW(compute(0).synchronize());
        CHECK_THROWS_AS(commit().synchronize(), DeviceError);
    }
}
