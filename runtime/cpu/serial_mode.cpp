#include "lockstep/runtime/internal/serial_mode.h"

#include <map>
#include <mutex>

#include "lockstep/runtime/internal/environment.h"
#include "lockstep/runtime/internal/live_memory.h"
#include "lockstep/runtime/internal/poison.h"

namespace lockstep {

namespace live_memory {

namespace {
std::mutex mutex;
std::map<void*, std::size_t>& table() {
    static auto* blocks = new std::map<void*, std::size_t>;
    return *blocks;
}
}  // namespace

void add(void* memory, std::size_t bytes) {
    if (!serial_mode::enabled()) return;
    const std::scoped_lock lock(mutex);
    table()[memory] = bytes;
}

void remove(void* memory) {
    if (!serial_mode::enabled()) return;
    const std::scoped_lock lock(mutex);
    table().erase(memory);
}

std::vector<std::pair<void*, std::size_t>> blocks() {
    const std::scoped_lock lock(mutex);
    return {table().begin(), table().end()};
}

}  // namespace live_memory

namespace serial_mode {

bool enabled() {
    static const bool value = environment::flag("LOCKSTEP_CPU_SERIAL");
    return value;
}

Guard::Guard(Device device, std::span<const Access> accesses) {
    if (enabled() && device.kind() == DeviceKind::cpu && !device.is_host())
        scope_.emplace(live_memory::blocks(), accesses);
}

}  // namespace serial_mode

}  // namespace lockstep
