// The blocks of device memory in use: what the serial mode poisons around a piece of work. Kept in that mode only.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::live_memory {

void add(void* memory, std::size_t bytes);
void remove(void* memory);
std::vector<std::pair<void*, std::size_t>> blocks();

}  // namespace lockstep::live_memory
