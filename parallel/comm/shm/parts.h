// Data of a call, cut into pieces for the rounds and copied to and from shared memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lockstep/parallel/comm/group/parts.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::shm {

/// Piece k of data that is transferred `unit` bytes per round.
struct Piece {
    std::size_t begin, bytes;
    Piece(std::uint64_t k, std::size_t unit, std::size_t total)
        : begin(std::min(k * unit, total)), bytes(std::min(unit, total - begin)) {}
};

inline std::uint64_t pieces(std::size_t total, std::size_t unit) { return ceil_div(total, unit); }

inline std::size_t longest(std::span<const std::size_t> parts) {
    return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end());
}

// Copies between a rank's own memory and what it shares.

/// memcpy that allows null for zero bytes. Copies in blocks that use vector instructions: on AMD processors, the C
/// library's `rep movsb` for long copies is several times slower when the data is in another core's cache.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
    constexpr std::size_t block = 64;
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    for (; bytes >= block; bytes -= block, out += block, in += block) std::memcpy(out, in, block);
    if (bytes > 0) std::memcpy(out, in, bytes);
}

}  // namespace lockstep::shm
