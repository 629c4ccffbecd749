// A per-thread cache for the small objects that every call creates and drops: tensors, operations, lists of operands. A
// thread caches the blocks that it frees. When it repeats a call, that call allocates nothing from the system.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep::recycled {

/// At least `bytes` bytes, aligned for every type of ordinary alignment. Throws std::bad_alloc.
void* take(std::size_t bytes);
/// Frees a block of take(bytes), on any thread. Each thread keeps a bounded number of free blocks; in builds with a
/// sanitizer it keeps none, so that the sanitizer sees every use after a free.
void give_back(void* memory, std::size_t bytes) noexcept;

/// An allocator of such memory for containers and std::allocate_shared.
template <class T>
struct Allocator {
    using value_type = T;

    Allocator() = default;
    template <class Other>
    Allocator(const Allocator<Other>&) noexcept {}  // NOLINT(google-explicit-constructor)

    T* allocate(std::size_t count) {
        static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
        if (count > (std::numeric_limits<std::size_t>::max)() / sizeof(T)) throw std::bad_array_new_length();
        return static_cast<T*>(take(count * sizeof(T)));
    }
    void deallocate(T* memory, std::size_t count) noexcept { give_back(memory, count * sizeof(T)); }
    friend bool operator==(const Allocator&, const Allocator&) noexcept { return true; }
};

/// A vector whose memory is recycled.
template <class T>
using Vector = std::vector<T, Allocator<T>>;

/// std::make_shared with such memory.
template <class T, class... Arguments>
std::shared_ptr<T> make_shared(Arguments&&... arguments) {
    return std::allocate_shared<T>(Allocator<T>(), std::forward<Arguments>(arguments)...);
}

}  // namespace lockstep::recycled
