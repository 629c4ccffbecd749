// Arrays of doubles and the loops that everything in tests/reference is made of.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace lockstep::reference {

using Sizes = std::vector<std::ptrdiff_t>;

/// Row-major values; integers (classes) are held as doubles too.
struct Array {
    Sizes shape;
    std::vector<double> v;

    Array() = default;
    explicit Array(Sizes sizes, double value = 0) : shape(std::move(sizes)) {
        std::ptrdiff_t count = 1;
        for (const std::ptrdiff_t size : shape) count *= size;
        v.assign(static_cast<std::size_t>(count), value);
    }
    std::ptrdiff_t size() const { return static_cast<std::ptrdiff_t>(v.size()); }
    double& operator[](std::ptrdiff_t i) { return v[static_cast<std::size_t>(i)]; }
    double operator[](std::ptrdiff_t i) const { return v[static_cast<std::size_t>(i)]; }
    std::ptrdiff_t dim(std::size_t i) const { return shape[i]; }
};

/// Calls f with the index of every element, in row-major order.
inline void for_each_index(const Sizes& shape, const std::function<void(const Sizes&)>& f) {
    Sizes index(shape.size(), 0);
    for (const std::ptrdiff_t size : shape)
        if (size == 0) return;
    while (true) {
        f(index);
        std::size_t d = shape.size();
        while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
        if (d == 0) return;
    }
}

/// Position of `index` in an array that may have fewer dimensions, and sizes of 1 that stand for any.
inline std::ptrdiff_t position(const Sizes& shape, const Sizes& index) {
    const std::size_t shift = index.size() - shape.size();
    std::ptrdiff_t result = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) result = result * shape[d] + (shape[d] == 1 ? 0 : index[d + shift]);
    return result;
}

}  // namespace lockstep::reference
