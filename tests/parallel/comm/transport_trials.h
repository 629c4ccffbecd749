// Calls of a transport for tests: those that must fail in time, and those whose results must agree.
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

namespace lockstep::testing {

using Lines = std::vector<std::string>;

inline Deadline in(int ms) { return RunClock::now() + std::chrono::milliseconds(ms); }

inline void finish(Message& message, int ms = 20000) {
    for (const Deadline deadline = in(ms); !message.advance(); std::this_thread::yield())
        if (RunClock::now() > deadline) throw std::runtime_error("a message is not done in time");
}

/// What `call` throws as a TransportError; something else when it took longer than `ms`.
inline std::string error_within(int ms, const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    std::string text = "nothing was thrown";
    try {
        call();
    } catch (const TransportError& error) {
        text = error.what();
        if (text.empty() || text.find('\n') != std::string::npos) return "no line of its own: " + text;
    }
    const auto took =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
    return took > ms ? "only after " + std::to_string(took) + " ms: " + text : text;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Empty when it contains `part`.
inline Lines unless(const std::string& text, const std::string& part) {
    return contains(text, part) ? Lines{} : Lines{"expected \"" + part + "\": " + text};
}

/// Sums that depend on the order of addition; empty when all ranks got the same ones.
inline Lines other_bits(Transport& transport, int rank) {
    Lines wrong;
    for (const std::size_t count : std::vector<std::size_t>{1, 5, 1000, 70000, 1 << 20}) {
        std::mt19937 random(static_cast<unsigned>(rank));
        std::uniform_real_distribution<float> any(-1.0f, 1.0f);
        std::vector<float> own(count);
        for (float& value : own) value = any(random);
        transport.all_reduce(own.data(), count, DType::f32, ReduceOp::sum, in(20000));
        std::vector<float> first = own;
        transport.broadcast(first.data(), count * sizeof(float), 0, in(20000));
        if (std::memcmp(own.data(), first.data(), count * sizeof(float)) != 0)
            wrong.push_back("other bits than rank 0 in sums of " + std::to_string(count));
    }
    return wrong;
}

}  // namespace lockstep::testing
