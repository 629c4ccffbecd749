// Vectors of given values, and the special ones among them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep::test {

using WholeNumbers = std::vector<std::int64_t>;
inline constexpr float infinite = std::numeric_limits<float>::infinity();
inline constexpr float undefined = std::numeric_limits<float>::quiet_NaN();

inline Tensor list_of(const std::vector<float>& values, Device device = {}) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, device);
}
inline Tensor whole_list(const WholeNumbers& values, Device device = {}) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, device);
}

}  // namespace lockstep::test
