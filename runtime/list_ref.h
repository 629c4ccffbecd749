// Lists as arguments: values in braces, a vector or a span, without a copy.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// A list that is owned by the caller, for parameters only: it refers to the caller's elements for the duration of the
/// call (c10::ArrayRef).
template <class T>
class ListRef {
public:
    ListRef() = default;
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Winit-list-lifetime"  // the list lives until the call returns
#endif
    ListRef(std::initializer_list<T> values)  // NOLINT(google-explicit-constructor)
        : first_(values.begin()), size_(values.size()) {}
#pragma GCC diagnostic pop
    template <class Allocator>
    ListRef(const std::vector<T, Allocator>& values)  // NOLINT(google-explicit-constructor)
        : first_(values.data()), size_(values.size()) {}
    ListRef(std::span<const T> values)  // NOLINT(google-explicit-constructor)
        : first_(values.data()), size_(values.size()) {}

    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    const T* begin() const { return first_; }
    const T* end() const { return first_ + size_; }
    const T& operator[](std::size_t i) const { return first_[i]; }

private:
    const T* first_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace lockstep
