#include "lockstep/runtime/warning.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace lockstep {

namespace {
std::mutex mutex;
WarningHandler& current_handler() {
    static auto* handler = new WarningHandler;  // destructors of static objects may warn
    return *handler;
}
}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
    const std::scoped_lock lock(mutex);
    return std::exchange(current_handler(), std::move(handler));
}

void warn(const std::string& text) {
    WarningHandler handler;
    {
        const std::scoped_lock lock(mutex);
        handler = current_handler();
    }
    if (handler)
        handler(text);
    else
        std::fprintf(stderr, "lockstep: warning: %s\n", text.c_str());
}

void warn_in_thread(const std::string& text) noexcept {
    try {
        warn(text);
    } catch (...) {
        std::fprintf(stderr, "lockstep: warning: %s\n", text.c_str());
    }
}

}  // namespace lockstep
