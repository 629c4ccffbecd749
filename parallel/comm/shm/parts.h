// What a call moves, cut into pieces for the rounds and into parts for the ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::shm {

/// Piece k of something that goes `unit` bytes a round.
struct Piece {
    std::size_t begin, bytes;
    Piece(std::uint64_t k, std::size_t unit, std::size_t total)
        : begin(std::min(k * unit, total)), bytes(std::min(unit, total - begin)) {}
};

inline std::uint64_t pieces(std::size_t total, std::size_t unit) { return (total + unit - 1) / unit; }

inline std::size_t longest(std::span<const std::size_t> parts) {
    return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
}

/// One part after the other: calls each(rank, where it begins, its bytes).
template <class Each>
void each_part(std::span<const std::size_t> bytes, Each each) {
    std::size_t begin = 0;
    for (std::size_t r = 0; r < bytes.size(); begin += bytes[r++]) each(static_cast<int>(r), begin, bytes[r]);
}

}  // namespace lockstep::shm
