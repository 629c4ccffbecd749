// Several small tensors that share one launch.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lockstep/runtime/host_device.h"

namespace lockstep::cuda {

// Limits of one launch, whose arguments must fit into 4 KB.
inline constexpr int max_segments = 64;
inline constexpr int max_segment_inputs = 256;

/// The elements of a launch's tensors, one after the other.
struct Segments {
    int count = 0;
    int end[max_segments] = {};  ///< number of elements of the tensors up to this one

    struct Place {
        int segment;
        int element;
        int size;  ///< number of elements of the segment
    };

    void add(int size) {
        end[count] = total() + size;
        ++count;
    }
    int total() const { return count == 0 ? 0 : end[count - 1]; }
    LOCKSTEP_HD_INLINE Place of(std::int64_t i) const {
        int segment = 0;
        while (i >= end[segment]) ++segment;
        const int begin = segment == 0 ? 0 : end[segment - 1];
        return {segment, static_cast<int>(i) - begin, end[segment] - begin};
    }
};

/// Calls enqueue(first, last) for ranges of at most `most` of `count` tensors.
template <class Enqueue>
void in_parts(std::size_t count, int most, Enqueue enqueue) {
    const auto step = static_cast<std::size_t>(most);
    for (std::size_t first = 0; first < count; first += step) enqueue(first, std::min(first + step, count));
}

}  // namespace lockstep::cuda
