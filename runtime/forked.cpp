#include "lockstep/runtime/internal/forked.h"

#include <fmt/format.h>
#include <pthread.h>

#include <utility>
#include <vector>

#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/runtime/error.h"

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

/// In the child, where this is the only thread.
void look() {
    ++state.generation;
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
    if (cpu_worker_count() > 0) return "virtual CPU devices are";
    return state.driver && device_count(DeviceKind::cuda) > 0 ? "the CUDA driver is" : "";
}

void keep(std::shared_ptr<const void> thing) {
    static auto* kept = new std::vector<std::shared_ptr<const void>>;
    kept->push_back(std::move(thing));
}

}  // namespace lockstep::forked
