// Calls of a transport for tests: those that must fail, and those whose results must agree.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace lockstep::test {

using Lines = std::vector<std::string>;

inline Deadline in(int ms) { return RunClock::now() + std::chrono::milliseconds(ms); }
/// A call that waits until this time hangs.
inline Deadline far_off() { return RunClock::now() + test::no_limit; }

inline void finish(Message& message) {
    for (const Deadline deadline = RunClock::now() + test::hang; !message.advance(); std::this_thread::yield())
        if (RunClock::now() > deadline) throw std::runtime_error("a message was not completed in time");
}

/// The message of the TransportError that `call` throws.
inline std::string error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const TransportError& error) {
        const std::string text = error.what();
        return text.empty() || text.find('\n') != std::string::npos ? "not a single line: " + text : text;
    }
    return "nothing was thrown";
}

/// Empty if it contains `part`.
inline Lines unless(const std::string& text, const std::string& part) {
    return contains(text, part) ? Lines{} : Lines{"expected \"" + part + "\": " + text};
}

/// Sums that depend on the order of addition; empty if all ranks got the same ones.
inline Lines other_bits(Transport& transport, int rank) {
    Lines wrong;
    for (const std::size_t count : std::vector<std::size_t>{1, 5, 1000, 70000, 1 << 20}) {
        std::mt19937 random(static_cast<unsigned>(rank));
        std::uniform_real_distribution<float> any(-1.0f, 1.0f);
        std::vector<float> own(count);
        for (float& value : own) value = any(random);
        transport.all_reduce(own.data(), count, DType::f32, ReduceOp::sum, far_off());
        std::vector<float> first = own;
        transport.broadcast(first.data(), count * sizeof(float), 0, far_off());
        if (std::memcmp(own.data(), first.data(), count * sizeof(float)) != 0)
            wrong.push_back("bits other than those of rank 0 in sums of " + std::to_string(count));
    }
    return wrong;
}

}  // namespace lockstep::test
