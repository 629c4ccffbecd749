#include "lockstep/runtime/cpu/serial_mode.h"

#include <map>
#include <mutex>

#include "lockstep/runtime/internal/process.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace lockstep::poison {

#if defined(__SANITIZE_ADDRESS__)
const bool available = true;
#else
const bool available = false;
#endif

Scope::Scope(std::vector<std::pair<void*, std::size_t>> live, std::span<const Access> declared)
    : live_(std::move(live)) {
    for (const auto& [address, bytes] : live_) ASAN_POISON_MEMORY_REGION(address, bytes);
    for (const Access& access : declared) ASAN_UNPOISON_MEMORY_REGION(access.address, access.bytes);
}

Scope::~Scope() {
    for (const auto& [address, bytes] : live_) ASAN_UNPOISON_MEMORY_REGION(address, bytes);
}

}  // namespace lockstep::poison

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
