// Copies between a rank's own memory and what it shares.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace lockstep::shm {

/// memcpy, where null is good for no bytes. In blocks that are copied by vector instructions: the C library's `rep
/// movsb` for long ones is several times slower out of another core's cache on processors of AMD.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
    constexpr std::size_t block = 64;
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    for (; bytes >= block; bytes -= block, out += block, in += block) std::memcpy(out, in, block);
    if (bytes > 0) std::memcpy(out, in, bytes);
}

}  // namespace lockstep::shm
