// Groups of adjacent elements that a thread loads and stores with one access of up to 16 bytes.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

constexpr int chunk_bytes = 16;
/// Number of elements of a chunk whose largest elements have `bytes` bytes.
constexpr int chunk_elements(std::size_t bytes) { return chunk_bytes / static_cast<int>(bytes); }

/// Whether accesses of `bytes` bytes, a power of two, may begin at `address`.
inline bool is_aligned(const void* address, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

namespace detail {
template <std::size_t bytes>
struct WordOf;
template <>
struct WordOf<16> : std::type_identity<uint4> {};
template <>
struct WordOf<8> : std::type_identity<uint2> {};
template <>
struct WordOf<4> : std::type_identity<std::uint32_t> {};
template <>
struct WordOf<2> : std::type_identity<std::uint16_t> {};
template <>
struct WordOf<1> : std::type_identity<std::uint8_t> {};
/// Type of one access.
template <std::size_t bytes>
using Word = typename WordOf<bytes>::type;
}  // namespace detail

/// One access; `from` is aligned to the size of `to`.
template <class T, int width>
LOCKSTEP_HD_INLINE void load_chunk(const T* from, T (&to)[width]) {
#if defined(__CUDA_ARCH__)
    const auto word = *reinterpret_cast<const detail::Word<sizeof to>*>(from);
    memcpy(to, &word, sizeof to);
#else
    std::memcpy(static_cast<void*>(to), from, sizeof to);
#endif
}

/// The same, or the element at `from` as every element of the chunk.
template <class T, int width>
LOCKSTEP_HD_INLINE void load_or_repeat(const T* from, bool repeated, T (&to)[width]) {
    if (!repeated) {
        load_chunk(from, to);
    } else {
        const T value = *from;
        LOCKSTEP_UNROLL
        for (T& each : to) each = value;
    }
}

/// One access; `to` is aligned to the size of `from`.
template <class T, int width>
LOCKSTEP_HD_INLINE void store_chunk(const T (&from)[width], T* to) {
#if defined(__CUDA_ARCH__)
    detail::Word<sizeof from> word;
    memcpy(&word, from, sizeof from);
    *reinterpret_cast<detail::Word<sizeof from>*>(to) = word;
#else
    std::memcpy(static_cast<void*>(to), from, sizeof from);
#endif
}

}  // namespace lockstep::cuda
