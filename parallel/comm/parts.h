// What a call moves, in parts for the ranks.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep {

/// One part after the other: calls each(rank, where it begins, its size).
template <class Each>
void each_part(std::span<const std::size_t> sizes, Each each) {
    std::size_t begin = 0;
    for (std::size_t r = 0; r < sizes.size(); begin += sizes[r++]) each(static_cast<int>(r), begin, sizes[r]);
}

}  // namespace lockstep
