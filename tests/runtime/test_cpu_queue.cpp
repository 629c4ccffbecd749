// Threads that serve the queues of CPU streams: their own, and those of compute streams that wait.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using lockstep::test::Gate;
using lockstep::test::serial;

namespace {

constexpr std::span<const Access> nothing;

Stream& compute(int index) { return Stream::of(Device::cpu(0), StreamRole::compute, index); }
Stream& commit() { return Stream::of(Device::cpu(0), StreamRole::commit); }

std::thread::id thread_of(Stream& stream) {
    std::thread::id id;
    stream.run("who", nothing, [&](const ExecContext&) { id = std::this_thread::get_id(); });
    stream.synchronize();
    return id;
}

/// Whether a thread of this process is sleeping, checked several times in a row.
bool sleeps(pid_t thread) {
    for (int look = 0; look < 5; ++look, std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
        std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));
        const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        const std::size_t name_end = text.rfind(')');
        if (name_end == std::string::npos || text.at(name_end + 2) != 'S') return false;
    }
    return true;
}

/// Processor time that this process has used.
std::chrono::microseconds used() {
    rusage usage{};
    REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/// A thread-local object that takes long to destroy.
struct Slow {
    static inline std::atomic<int> alive{0};
    Slow() { ++alive; }
    ~Slow() {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        --alive;
    }
    Slow(const Slow&) = delete;
    Slow& operator=(const Slow&) = delete;
};

void keep_slow_object_in_thread_of(Stream& stream) {
    stream.run("keep", nothing, [](const ExecContext&) {
        thread_local const Slow slow;
        static_cast<void>(&slow);
    });
    stream.synchronize();
}

}  // namespace

TEST_CASE("without a free core, the thread of a compute stream serves other streams between its items") {
    if (serial()) return;
    const StreamThreads kept;  // a thread that starts later would look at the queue itself
    const std::thread::id computing = thread_of(compute(0));
    pid_t commit_thread = 0;
    commit().run("who", nothing, [&](const ExecContext&) { commit_thread = ::gettid(); });
    commit().synchronize();
    REQUIRE(test::comes_true([&] { return sleeps(commit_thread); }));  // until then it would look at the queue itself
    Gate first_item, fillers;
    const int lanes = usable_cores();
    std::atomic<int> held{0};
    for (int i = 1; i <= lanes; ++i)
        compute(i).run("fill", nothing, [&](const ExecContext&) {
            ++held;
            fillers.pass();
        });
    compute(0).run("first", nothing, [&](const ExecContext&) {
        ++held;
        first_item.pass();
    });
    while (held <= lanes) std::this_thread::yield();
    std::atomic<bool> served{false};
    std::thread::id server;
    commit().run("update", nothing, [&](const ExecContext&) {
        server = std::this_thread::get_id();
        served = true;
    });
    compute(0).run("second", nothing, [](const ExecContext&) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(served);  // its own thread was not woken
    first_item.open();
    while (!served) std::this_thread::yield();  // a host that waits for a stream would wake that thread
    CHECK(server == computing);
    fillers.open();
    CHECK_NOTHROW(synchronize_all());
}

TEST_CASE("a queue that was left to helpers is served even if all of them are blocked") {
    if (serial()) return;
    const int lanes = usable_cores() + 1;
    const bool by_event = GENERATE(false, true);
    Gate gate;
    std::atomic<int> held{0};
    for (int i = 0; i < lanes; ++i)
        compute(i).run("hold", nothing, [&](const ExecContext&) {
            ++held;
            gate.pass();
        });
    while (held < lanes) std::this_thread::yield();
    commit().run("let go", nothing, [&](const ExecContext&) { gate.open(); });
    Event opened(Device::cpu(0));
    commit().record(opened);
    if (by_event)
        opened.synchronize();
    else
        commit().synchronize();
    CHECK_NOTHROW(synchronize_all());
}

TEST_CASE("work that fails on a helper's thread is reported by its own stream") {
    if (serial()) return;
    Event ready(Device::cpu(0)), done(Device::cpu(0));
    for (int i = 0; i < 50; ++i) {
        compute(1).run("prepare", nothing, [](const ExecContext&) { std::this_thread::yield(); });
        compute(1).record(ready);
        commit().wait(ready);
        commit().run("update", nothing, [](const ExecContext&) { throw DeviceError("planted"); });
        commit().record(done);
        compute(0).run("wake up", nothing, [](const ExecContext&) {});
        compute(0).wait(done);
        CHECK_NOTHROW(compute(0).synchronize());
        CHECK_THROWS_AS(commit().synchronize(), DeviceError);
    }
}

TEST_CASE("a compute stream that waits yields its core") {
    if (serial()) return;
    constexpr std::chrono::microseconds soon(200), late(1200);
    Stream& slow = Stream::of(Device::cpu(0), StreamRole::input);
    Event ready(Device::cpu(0));
    thread_of(compute(0));
    thread_of(slow);
    const auto begin = std::chrono::steady_clock::now();
    const auto used_before = used();
    for (int i = 0; i < 200; ++i) {
        slow.run("read", nothing, [&](const ExecContext&) { std::this_thread::sleep_for(late); });
        slow.record(ready);
        // Keeps the thread awake until it reaches the wait.
        compute(0).run("begin", nothing, [&](const ExecContext&) { std::this_thread::sleep_for(soon); });
        compute(0).wait(ready);
        compute(0).run("use", nothing, [](const ExecContext&) {});
        compute(0).synchronize();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::chrono::duration<double> busy = used() - used_before;
    INFO(busy.count() << " s of processor time in " << took.count() << " s");
    CHECK(busy < took / 2);
}

TEST_CASE("after streams' threads are reported as ended, they and their thread-local objects no longer exist") {
    if (serial()) return;
    {
        const StreamThreads threads;
        keep_slow_object_in_thread_of(compute(0));
        keep_slow_object_in_thread_of(commit());
        CHECK(Slow::alive > 0);
    }
    CHECK(Slow::alive == 0);
    CHECK(existing_cpu_threads() == 0);
    keep_slow_object_in_thread_of(commit());  // this thread ends by itself
    CHECK(lockstep::test::comes_true([] { return existing_cpu_threads() == 0; }));
    CHECK(Slow::alive == 0);
}
