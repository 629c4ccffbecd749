// Data of a call, in parts for the ranks.
#pragma once

#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>

namespace lockstep {

inline std::size_t sum_of(std::span<const std::size_t> sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

/// Copies between ranges that may be identical or empty.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

/// Calls each(rank, offset, size) for each part in order.
template <class Each>
void each_part(std::span<const std::size_t> sizes, Each each) {
    std::size_t begin = 0;
    for (std::size_t r = 0; r < sizes.size(); begin += sizes[r++]) each(static_cast<int>(r), begin, sizes[r]);
}

}  // namespace lockstep
