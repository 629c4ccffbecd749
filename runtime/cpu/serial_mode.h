// LOCKSTEP_CPU_SERIAL=1: CPU devices run every piece of work at once, on the enqueuing thread, and under
// AddressSanitizer all device memory that the work did not declare is poisoned while it runs.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/runtime/stream.h"

namespace lockstep::live_memory {

// Device memory blocks in use, which serial mode poisons around a piece of work. Recorded only in that mode.

void add(void* memory, std::size_t bytes);
void remove(void* memory);
std::vector<std::pair<void*, std::size_t>> blocks();

}  // namespace lockstep::live_memory

namespace lockstep::poison {

// Memory that a piece of work did not declare is poisoned while it runs: under AddressSanitizer, reading or writing it
// ends the program with a report. No-op without AddressSanitizer.

/// True when the library was built with AddressSanitizer.
extern const bool available;

/// While an instance lives, only the ranges `declared` of the blocks `live` (address, bytes) may be accessed. Scopes
/// must neither nest nor overlap in time, and blocks must not be freed before the scope ends.
class Scope {
public:
    Scope(std::vector<std::pair<void*, std::size_t>> live, std::span<const Access> declared);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

private:
    std::vector<std::pair<void*, std::size_t>> live_;
};

}  // namespace lockstep::poison

namespace lockstep::serial_mode {

bool enabled();

/// Scope around a call that enqueues work on a CPU device: the work runs within that call. No-op when the mode is off
/// and for other devices, including the host's streams (other threads may use those meanwhile).
class Guard {
public:
    Guard(Device device, std::span<const Access> accesses);

private:
    std::optional<poison::Scope> scope_;
};

}  // namespace lockstep::serial_mode
