// Interpolation of images: which elements of x an element of the result is made of, for all backends alike.
#pragma once

#include <cmath>
#include <cstddef>

#include "lockstep/runtime/element.h"
#include "lockstep/runtime/operation.h"

namespace lockstep {

struct InterpolateGeometry {
    bool nearest;  ///< otherwise bilinear
    bool align_corners;
    double step_h, step_w;  ///< elements of x from one element of the result to the next
};
/// in: x (N, C, H, W); out: y (N, C, OH, OW), in the layout of x
struct InterpolateForward {
    static constexpr const char* name = "interpolate_forward";
    InterpolateGeometry geometry;
};
/// in: dy; out: dx, in the layout of dy
struct InterpolateBackward {
    static constexpr const char* name = "interpolate_backward";
    InterpolateGeometry geometry;
};

namespace element {

/// y = (1 - share) * x[first] + share * x[second] along one dimension.
template <class T>
struct Taps {
    std::ptrdiff_t first, second;
    T share;
};

/// What element `o` of the result is made of along a dimension of size `in`. Positions are PyTorch's: those of nearest
/// in single precision, which decides who is nearest; those of bilinear in double, rounded to T as shares.
template <class T>
LOCKSTEP_ELEMENT Taps<T> interpolation_taps(bool nearest, bool align_corners, double step, std::ptrdiff_t in,
                                            std::ptrdiff_t o) {
    const std::ptrdiff_t last = in - 1;
    if (nearest) {
        const auto at = static_cast<std::ptrdiff_t>(std::floor(static_cast<float>(o) * static_cast<float>(step)));
        const std::ptrdiff_t only = at < last ? at : last;
        return {only, only, T(0)};
    }
    double position = static_cast<double>(o) * step;
    if (!align_corners) position += 0.5 * step - 0.5;
    if (position < 0) position = 0;
    const auto floor = static_cast<std::ptrdiff_t>(position);
    if (floor >= last) return {last, last, T(0)};
    return {floor, floor + 1, static_cast<T>(position - static_cast<double>(floor))};
}

/// Elements [begin, end) of the result, among which are all that are made of element `i`.
struct Readers {
    std::ptrdiff_t begin, end;
};
LOCKSTEP_ELEMENT Readers interpolation_readers(bool nearest, bool align_corners, double step, std::ptrdiff_t in,
                                               std::ptrdiff_t out, std::ptrdiff_t i) {
    if (!(step > 0)) return {0, out};
    // They read at less than one element from i; one more on either side covers what rounding does.
    const double shift = !nearest && !align_corners ? 0.5 : 0.0;
    const double low = std::floor((static_cast<double>(i - 1) + shift) / step - shift) - 1;
    const double high = std::ceil((static_cast<double>(i + 1) + shift) / step - shift) + 2;
    const bool from_start = i == 0 || low <= 0, to_end = i == in - 1 || high >= static_cast<double>(out);
    return {from_start ? 0 : static_cast<std::ptrdiff_t>(low), to_end ? out : static_cast<std::ptrdiff_t>(high)};
}

}  // namespace element
}  // namespace lockstep
