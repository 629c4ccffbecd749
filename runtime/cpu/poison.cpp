#include "lockstep/runtime/internal/poison.h"

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
