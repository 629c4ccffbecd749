// Pinned memory that operations between processes use again and again: to pin it takes longer than to fill it.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/runtime/memory.h"

namespace lockstep {

/// At least `bytes` bytes, from any thread. Kept for the next one when the last owner lets go: nothing may use them
/// then.
std::shared_ptr<Buffer> take_pinned(std::size_t bytes);

}  // namespace lockstep
