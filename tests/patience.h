// How long a test waits for what must happen: on a machine that is ever so busy only something that hangs takes longer.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace lockstep::test {

inline constexpr std::chrono::seconds hang(300);
/// A time limit beyond that: a test in which a process waits for it fails.
inline constexpr std::chrono::seconds no_limit(900);

/// Whether `condition` comes true before `hang` has passed.
inline bool comes_true(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + hang;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

}  // namespace lockstep::test
