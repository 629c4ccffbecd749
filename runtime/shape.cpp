#include "lockstep/runtime/shape.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep {

Shape::Shape(std::initializer_list<std::int64_t> sizes)
    : Shape(std::span<const std::int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const std::int64_t> sizes) {
    for (const std::int64_t size : sizes) push_back(size);
}

void Shape::push_back(std::int64_t size) { insert(dims_, size); }

void Shape::erase(int dim) {
    for (int i = dim; i + 1 < dims_; ++i) (*this)[i] = (*this)[i + 1];
    --dims_;
}

void Shape::insert(int dim, std::int64_t size) {
    if (dims_ == max_dims)
        throw InvalidArgument(fmt::format("too many dimensions; expected at most {} dimensions", max_dims));
    ++dims_;
    for (int i = dims_ - 1; i > dim; --i) (*this)[i] = (*this)[i - 1];
    (*this)[dim] = size;
}

std::int64_t Shape::numel() const {
    std::int64_t n = 1;
    for (const std::int64_t size : *this) n *= size;
    return n;
}

Shape Shape::contiguous_strides() const {
    Shape strides = *this;
    std::int64_t stride = 1;
    for (int i = dims_ - 1; i >= 0; --i) {
        strides[i] = stride;
        stride *= (*this)[i] == 0 ? 1 : (*this)[i];
    }
    return strides;
}

std::string Shape::str() const {
    std::string text = "(";
    for (int i = 0; i < dims_; ++i) text += fmt::format("{}{}", i ? ", " : "", (*this)[i]);
    return text + (dims_ == 1 ? ",)" : ")");
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* where) {
    const Shape& longer = a.dims() >= b.dims() ? a : b;
    const Shape& shorter = a.dims() >= b.dims() ? b : a;
    Shape result = longer;
    const int shift = longer.dims() - shorter.dims();
    for (int i = 0; i < shorter.dims(); ++i) {
        const std::int64_t x = longer[i + shift];
        const std::int64_t y = shorter[i];
        if (x != y && x != 1 && y != 1)
            throw InvalidArgument(fmt::format(
                "{}: shapes {} and {} do not broadcast; expected sizes that are equal or 1", where, a.str(), b.str()));
        result[i + shift] = x == 1 ? y : x;
    }
    return result;
}

int wrap_dim(int dim, int dims, const char* where) {
    if (dim < -dims || dim >= dims)
        throw InvalidArgument(
            fmt::format("{}: dimension {} is out of range for {} dimensions; expected 0, 1, ... from the front or -1, "
                        "-2, ... from the end",
                        where, dim, dims));
    return dim < 0 ? dim + dims : dim;
}

}  // namespace lockstep
