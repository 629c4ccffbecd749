// Cached memory of each device, from which buffers are taken.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

class Stream;

/// `bytes` (1 or more) of memory on the stream's device, free in the order of `home`. Throws OutOfMemory, which names
/// what holds the memory by its `tag`s.
void* take_memory(Stream& home, std::size_t bytes, std::string_view tag);
/// Gives back what was taken on `home`, in whose order it is used again.
void put_back_memory(Stream& home, void* memory);

}  // namespace lockstep
