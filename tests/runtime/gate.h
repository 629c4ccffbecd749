// Work that waits until a test lets it go, and what a call throws.
#pragma once

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/tests/patience.h"

namespace lockstep::testing {

class Gate {
public:
    void open() {
        const std::scoped_lock lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    /// Blocks the calling thread until `open`.
    void pass() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, test::hang, [&] { return open_; }))
            throw std::runtime_error("a gate stayed closed");
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
};

/// In the serial mode of the CPU devices work runs inside the enqueuing call: nothing can be held back.
inline bool serial() {
    const char* value = std::getenv("LOCKSTEP_CPU_SERIAL");
    return value && std::string_view(value) == "1";
}

/// Message of the E that `call` throws, or an empty string.
template <class E, class F>
std::string message_of(F call) {
    try {
        call();
    } catch (const E& error) {
        return error.what();
    }
    return {};
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace lockstep::testing
