#include "lockstep/runtime/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <utility>

#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

constexpr std::array<std::string_view, 4> level_names{"debug", "info", "warning", "off"};
constexpr int unknown_level = -1;

std::atomic<int> current_level{unknown_level};

std::mutex mutex;
LogHandler& current_handler() {
    static auto* handler = new LogHandler;  // destructors of static objects may warn
    return *handler;
}

void write_to_stderr(LogLevel level, const std::string& text) {
    std::fprintf(stderr, "lockstep: %s: %s\n", level_names[static_cast<std::size_t>(level)].data(), text.c_str());
}

void send(LogLevel level, const std::string& text) {
    if (!logs(level)) return;
    LogHandler handler;
    {
        const std::scoped_lock lock(mutex);
        handler = current_handler();
    }
    if (handler)
        handler(level, text);
    else
        write_to_stderr(level, text);
}

}  // namespace

LogHandler set_log_handler(LogHandler handler) {
    const std::scoped_lock lock(mutex);
    return std::exchange(current_handler(), std::move(handler));
}

LogLevel log_level() {
    int level = current_level.load(std::memory_order_relaxed);
    if (level == unknown_level) {
        const auto named = environment::one_of("LOCKSTEP_LOG", {"debug", "info", "warning", "off"});
        const int wanted = named ? static_cast<int>(*named) : static_cast<int>(LogLevel::warning);
        // Another thread may have set it meanwhile.
        if (current_level.compare_exchange_strong(level, wanted)) level = wanted;
    }
    return static_cast<LogLevel>(level);
}

void set_log_level(LogLevel level) { current_level = static_cast<int>(level); }

bool logs(LogLevel level) { return level != LogLevel::off && level >= log_level(); }

void write_log(LogLevel level, const std::string& text) noexcept {
    try {
        send(level, text);
    } catch (...) {
        write_to_stderr(level, text);
    }
}

void warn(const std::string& text) { send(LogLevel::warning, text); }

}  // namespace lockstep
