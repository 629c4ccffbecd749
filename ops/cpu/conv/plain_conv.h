// Convolution by plain loops over row-major tensors: for f64, which oneDNN does not support.
#pragma once

#include <cstdint>

#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/shape.h"

namespace lockstep::cpu {

/// x (n, c, h, w), weights (k, c / groups, kh, kw), y (n, k, oh, ow).
struct PlainConv {
    PlainConv(const Shape& x, const Shape& weights, const Shape& y, const ConvGeometry& geometry);

    /// bias may be null.
    template <class T>
    void forward(const T* x, const T* weights, const T* bias, T* y, int threads) const;
    template <class T>
    void backward_data(const T* dy, const T* weights, T* dx, int threads) const;
    /// db may be null.
    template <class T>
    void backward_weights(const T* x, const T* dy, T* dweights, T* db, int threads) const;

private:
    struct Range {
        std::int64_t begin, end;
    };
    /// Output positions whose input position o * stride + tap - pad is in [0, size).
    static Range valid(std::int64_t out, std::int64_t size, std::int64_t stride, std::int64_t tap, std::int64_t pad);
    /// Channels of x and of y in each group.
    std::int64_t group_c() const { return c_ / geometry_.groups; }
    std::int64_t group_k() const { return k_ / geometry_.groups; }
    /// Calls row(first element of a row of y, first element of the row of x that tap (i, j) reads, length) for every
    /// output row; elements of the row of x are stride_w apart.
    template <class Row>
    void for_rows(std::int64_t i, std::int64_t j, const Row& row) const;

    std::int64_t n_, c_, h_, w_, k_, kh_, kw_, out_h_, out_w_;
    ConvGeometry geometry_;
};

}  // namespace lockstep::cpu
