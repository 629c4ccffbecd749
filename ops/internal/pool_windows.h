// The windows of a pooling along one dimension.
#pragma once

#include <cstdint>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

struct PoolWindow {
    int size, stride, padding, dilation = 1;
};

class PoolWindows {
public:
    /// Windows over dimension `dim` of x. Throws InvalidArgument in the name of a function. `ceil_mode`: elements that
    /// are left at the end have a smaller window.
    PoolWindows(const char* name, const Tensor& x, int dim, const PoolWindow& given, bool ceil_mode);

    std::int64_t count() const { return count_; }
    /// Number of padding elements that the windows need after the elements.
    std::int64_t after() const;
    /// The elements at position i of all windows.
    Tensor elements(const Tensor& padded, std::int64_t i) const;
    /// How many elements of a window are elements of x or, if `include_pad`, of its padding.
    std::int64_t counted(std::int64_t window, bool include_pad) const;

private:
    std::int64_t reach() const { return std::int64_t{window_.dilation} * (window_.size - 1) + 1; }

    PoolWindow window_;
    int dim_;
    std::int64_t length_, count_ = 0;
};

}  // namespace lockstep
