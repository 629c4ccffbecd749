// Sizes and strides of tensors: at most 8 dimensions, stored in place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// A short list of 64-bit numbers: sizes or strides (both counted in elements).
class Shape {
public:
    static constexpr int max_dims = 8;

    Shape() = default;
    /// Throws InvalidArgument for more than 8 dimensions.
    Shape(std::initializer_list<std::int64_t> sizes);
    explicit Shape(std::span<const std::int64_t> sizes);

    int dims() const { return dims_; }
    bool empty() const { return dims_ == 0; }
    std::int64_t operator[](int i) const { return sizes_[static_cast<std::size_t>(i)]; }
    std::int64_t& operator[](int i) { return sizes_[static_cast<std::size_t>(i)]; }
    const std::int64_t* begin() const { return sizes_.data(); }
    const std::int64_t* end() const { return sizes_.data() + dims_; }
    void push_back(std::int64_t size);
    /// Removes dimension `dim`.
    void erase(int dim);
    /// Inserts `size` before dimension `dim`.
    void insert(int dim, std::int64_t size);

    /// Product of the sizes; 1 for a scalar.
    std::int64_t numel() const;
    /// Strides of a row-major tensor of these sizes.
    Shape contiguous_strides() const;
    /// "(64, 1, 28, 28)"
    std::string str() const;

    friend bool operator==(const Shape& a, const Shape& b) {
        if (a.dims_ != b.dims_) return false;
        for (int i = 0; i < a.dims_; ++i)
            if (a[i] != b[i]) return false;
        return true;
    }

private:
    std::array<std::int64_t, max_dims> sizes_{};
    int dims_ = 0;
};

/// Shape of the broadcast of `a` and `b` (numpy's rule). Throws InvalidArgument naming both and `where`.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* where);

/// `dim` counted from the front; negative dims count from the end. Throws InvalidArgument out of range.
int wrap_dim(int dim, int dims, const char* where);

}  // namespace lockstep
