// The table through which depthwise.cpp calls its kernels.
#pragma once

#include <cstddef>

namespace lockstep::cpu {

/// A product that every element of a phase sums: `offset` is the pixel of the source relative to the first one,
/// `weight` the position in the filter.
struct DepthwiseTap {
    std::ptrdiff_t offset, weight;
};

/// Elements of the result that sum the same taps: rows first_row, first_row + row_step, ..., and such columns.
struct DepthwisePhase {
    std::ptrdiff_t first_row, row_step, rows, first_column, column_step, columns;
    std::ptrdiff_t first_tap, taps;  // a range of the pass's taps
};

/// One of the two passes that compute an image. The source (h, w) gets margins of zeros, from which it has `rows` and
/// `columns`; a phase's next row reads source pixels `row_step` rows below, and its next column `column_step` to the
/// right.
struct DepthwisePass {
    std::ptrdiff_t h, w, top, left, rows, columns, row_step, column_step;
    std::ptrdiff_t result_h, result_w;
    std::ptrdiff_t phase_count;
    const DepthwisePhase* phases;
    const DepthwiseTap* taps;

    bool has_margins() const { return rows != h || columns != w; }
};

/// Sizes of the weights and of the batch.
struct DepthwiseSizes {
    std::ptrdiff_t n, c, kh, kw;
};

/// Images are nChw{V}c with zeros in the missing channels, aligned to 64 bytes like scratch, whose sizes are in floats;
/// weights and bias are plain.
struct DepthwiseKernels {
    std::ptrdiff_t (*scratch_floats)(const DepthwiseSizes&, const DepthwisePass&, int threads);
    /// bias may be null.
    void (*convolve)(const DepthwiseSizes&, const DepthwisePass&, const float* source, const float* w,
                     const float* bias, float* result, float* scratch, int threads);
    /// `pass` is the forward pass. db may be null.
    void (*backward_weights)(const DepthwiseSizes&, const DepthwisePass& pass, const float* x, const float* dy,
                             float* dw, float* db, float* scratch, int threads);
};

namespace avx2 {
extern const DepthwiseKernels depthwise_kernels;
}
namespace avx512 {
extern const DepthwiseKernels depthwise_kernels;
}

}  // namespace lockstep::cpu
