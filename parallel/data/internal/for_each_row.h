// Parallel work on many rows while the cores are otherwise idle: before training, and in data generators.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::internal {

/// Calls body(row) for all rows from 0 to count - 1 on `threads` threads (0: as many as there are cores), in any order.
/// After an exception no further row is begun; that of the lowest row is thrown, the same in every run.
void for_each_row(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body);

}  // namespace lockstep::internal
