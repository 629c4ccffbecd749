#include "lockstep/runtime/internal/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/runtime/error.h"

namespace lockstep::environment {

bool flag(const char* name) { return integer(name, 0, 1).value_or(0) == 1; }

std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high) {
    const char* text = std::getenv(name);
    if (!text || !*text) return std::nullopt;
    const std::string_view view(text);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
    if (error != std::errc() || end != view.data() + view.size() || value < low || value > high)
        throw InvalidEnvironment(fmt::format("environment variable {}={} is invalid; expected an integer from {} to {}",
                                             name, view, low, high));
    return value;
}

std::optional<std::size_t> one_of(const char* name, std::initializer_list<std::string_view> words) {
    const char* text = std::getenv(name);
    if (!text || !*text) return std::nullopt;
    const auto* const found = std::find(words.begin(), words.end(), std::string_view(text));
    if (found == words.end())
        throw InvalidEnvironment(fmt::format("environment variable {}={} is invalid; expected one of {}", name, text,
                                             fmt::join(words, ", ")));
    return static_cast<std::size_t>(found - words.begin());
}

}  // namespace lockstep::environment

namespace lockstep::internal {

void open_standard_streams() noexcept {
    const int error = errno;
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
        if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
        const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY);
        if (opened >= 0 && opened != stream) {  // a lower number was free
            ::dup2(opened, stream);
            ::close(opened);
        }
    }
    errno = error;
}

}  // namespace lockstep::internal

namespace lockstep::process_exit {

std::atomic<bool> has_begun{false};
std::atomic<void (*)()> wait_for_devices{nullptr};

namespace {

std::atomic<std::thread::id> ender{};

/// Time after which a blocked thread is released, in case a static object's destructor joins it.
constexpr std::chrono::seconds longest_end(10);

void begin() {
    std::thread::id nobody;
    if (!ender.compare_exchange_strong(nobody, std::this_thread::get_id()) && nobody != std::this_thread::get_id()) {
        // A second thread that calls exit() would destroy static objects concurrently with the first one, which waits
        // here or is about to. POSIX 2024 makes it wait for the end of the process.
        std::atexit(begin);  // for a third thread
        for (;;) ::pause();
    }
    const bool first = !has_begun.exchange(true);
    // A second thread calls the handler that was registered last. Until glibc 2.41 it would otherwise call the
    // destructors of static objects, and free the list of handlers that the first thread reads.
    if (first) std::atexit(begin);
    void (*const wait)() = wait_for_devices;
    if (!wait) return;
    wait();
    // A thread that has passed the check may enqueue one more piece of work.
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

}  // namespace lockstep::process_exit

namespace lockstep::forked {

std::array<std::atomic<bool>, 2> lost_kinds{};

namespace {

constexpr const char* advice = "; expected fork before devices are used, or exec after it";

struct State {
    std::atomic<int> generation{0};
    std::atomic<bool> driver{false}, host_threads{false};  // used
    std::atomic<bool> lost_host_threads{false};
};
State state;

/// Runs in the child, where this is the only thread.
void look() {
    ++state.generation;
    forget_cpu_threads();
    if (cpu_worker_count() > 0) lost_kinds[static_cast<std::size_t>(DeviceKind::cpu)] = true;
    if (state.driver) lost_kinds[static_cast<std::size_t>(DeviceKind::cuda)] = true;
    if (state.host_threads) state.lost_host_threads = true;
}

}  // namespace

int generation() {
    static const int watched = pthread_atfork(nullptr, nullptr, look);
    return watched == 0 ? state.generation.load(std::memory_order_relaxed) : 0;
}

void throw_lost(std::string_view call, Device device) {
    throw InvalidArgument(
        fmt::format("{}: {} was in use when this process was forked, and is not usable in the child{}", call,
                    device.str(), advice));
}

void refuse(std::string_view call, std::string_view thing) {
    throw InvalidArgument(fmt::format(
        "{}: {} was created before this process was forked, and is not usable in the child{}", call, thing, advice));
}

void note_driver() {
    static_cast<void>(generation());
    state.driver = true;
}

void note_host_threads() noexcept {
    if (!state.host_threads.load(std::memory_order_relaxed)) state.host_threads = true;
}

bool lost_host_threads() noexcept { return state.lost_host_threads.load(std::memory_order_relaxed); }

std::string in_use() {
    if (lost(DeviceKind::cpu) || existing_cpu_threads() > 0) return "virtual CPU devices are";
    return state.driver && device_count(DeviceKind::cuda) > 0 ? "the CUDA driver is" : "";
}

void keep(std::shared_ptr<const void> thing) {
    static auto* kept = new std::vector<std::shared_ptr<const void>>;
    kept->push_back(std::move(thing));
}

}  // namespace lockstep::forked
