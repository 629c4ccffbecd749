#include "lockstep/runtime/internal/ending.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "lockstep/runtime/error.h"

namespace lockstep::ending {

std::atomic<bool> has_begun{false};
std::atomic<void (*)()> wait_for_devices{nullptr};

namespace {

std::atomic<std::thread::id> ender{};

/// A static object whose destructor joins a thread that trains gets it back after this time.
constexpr std::chrono::seconds longest_end(10);

void begin() {
    std::thread::id nobody;
    if (!ender.compare_exchange_strong(nobody, std::this_thread::get_id()) && nobody != std::this_thread::get_id()) {
        // A second thread that has called exit() would destroy static objects beside the first one, which waits here or
        // is about to. POSIX of 2024 has it wait for the end of the process.
        for (;;) ::pause();
    }
    const bool first = !has_begun.exchange(true);
    void (*const wait)() = wait_for_devices;
    if (!wait) return;
    wait();
    // A thread that was past the check may enqueue one more piece of work.
    for (int turn = 0; first && turn < 5; ++turn) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        wait();
    }
}

}  // namespace

void watch() { std::atexit(begin); }

void hold_back(std::string_view call) {
    if (ender.load() == std::this_thread::get_id()) return;
    const auto until = std::chrono::steady_clock::now() + longest_end;
    while (std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw DeviceError(fmt::format("{}: the process is ending; expected no work for devices after exit()", call));
}

}  // namespace lockstep::ending
