// Cached memory of each device, from which buffers are taken.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

class Stream;

/// Memory of the stream's device that is free in the order of `home`; at least one byte. Throws OutOfMemory, which
/// names what holds the memory by its `tag`s.
void* take_memory(Stream& home, std::size_t bytes, std::string_view tag);
/// For the next who takes some on `home`, whose order it stays in.
void put_back_memory(Stream& home, void* memory);

}  // namespace lockstep
