// Adjacent elements that one access moves.
#pragma once

#include "lockstep/ops/cuda/chunk.h"

namespace lockstep::cuda {

template <class T, int width>
struct Pack {
    T of[width];
};

/// Elements in the widest access.
template <class T>
inline constexpr int widest = chunk_elements(sizeof(T));

/// `address` must be a multiple of the pack's size.
template <int width, class T>
LOCKSTEP_HD_INLINE Pack<T, width> load_pack(const T* address) {
    Pack<T, width> values;
    load_chunk(address, values.of);
    return values;
}
template <class T, int width>
LOCKSTEP_HD_INLINE void store_pack(T* address, const Pack<T, width>& values) {
    store_chunk(values.of, address);
}

/// Packs of a tensor that is read, in one access each if `aligned`. Which elements form a pack does not depend on it.
template <class T, int width>
struct PackedInput {
    const T* data;
    bool aligned;

    LOCKSTEP_HD_INLINE Pack<T, width> load(std::int64_t pack) const { return at(pack * width); }
    /// The pack that begins at an element, which is a multiple of `width`.
    LOCKSTEP_HD_INLINE Pack<T, width> at(std::int64_t element) const {
        const T* const from = data + element;
        if (aligned) return load_pack<width>(from);
        Pack<T, width> values;
        for (int i = 0; i < width; ++i) values.of[i] = from[i];
        return values;
    }
};

/// The same for a tensor that is written.
template <class T, int width>
struct PackedOutput {
    T* data;
    bool aligned;

    LOCKSTEP_HD_INLINE void store(std::int64_t pack, const Pack<T, width>& values) const {
        T* const to = data + pack * width;
        if (aligned) {
            store_pack(to, values);
            return;
        }
        for (int i = 0; i < width; ++i) to[i] = values.of[i];
    }
};

/// Whether packs of `width` elements may begin at all of the addresses. A null pointer is not read.
template <int width, class... T>
bool are_aligned(const T*... addresses) {
    return (is_aligned(addresses, sizeof(T) * width) && ...);
}
template <int width, class T>
PackedInput<T, width> packed_input(const T* data) {
    return {data, are_aligned<width>(data)};
}
template <int width, class T>
PackedOutput<T, width> packed_output(T* data) {
    return {data, are_aligned<width>(data)};
}

}  // namespace lockstep::cuda
