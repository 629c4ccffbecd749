// Relative error of results.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace lockstep::reference {

/// sqrt(sum (found - expected)^2 / sum expected^2); infinite if the sizes differ.
template <class T>
double relative_error(const std::vector<float>& found, const std::vector<T>& expected) {
    if (found.size() != expected.size()) return std::numeric_limits<double>::infinity();
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto wanted = static_cast<double>(expected[i]);
        const double distance = static_cast<double>(found[i]) - wanted;
        difference += distance * distance;
        norm += wanted * wanted;
    }
    return std::sqrt(difference / norm);
}

}  // namespace lockstep::reference
