// Memory that a piece of work did not declare is made untouchable while it runs: under AddressSanitizer a read or a
// write of it ends the program with a report. Without AddressSanitizer nothing happens.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/runtime/stream.h"

namespace lockstep::poison {

/// True when the library was built with AddressSanitizer.
extern const bool available;

/// While it lives, no byte of the blocks `live` (address, bytes) may be touched but those of `declared`. Scopes must
/// neither nest nor overlap in time, and blocks must not be freed before the scope ends.
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
