// Data of a call, cut into pieces for the rounds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/parallel/comm/group/parts.h"

namespace lockstep::shm {

/// Piece k of data that is transferred `unit` bytes per round.
struct Piece {
    std::size_t begin, bytes;
    Piece(std::uint64_t k, std::size_t unit, std::size_t total)
        : begin(std::min(k * unit, total)), bytes(std::min(unit, total - begin)) {}
};

inline std::uint64_t pieces(std::size_t total, std::size_t unit) { return (total + unit - 1) / unit; }

inline std::size_t longest(std::span<const std::size_t> parts) {
    return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
}

}  // namespace lockstep::shm
