#include "lockstep/ops/cpu/conv/plain_conv.h"

#include <algorithm>

#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {

PlainConv::PlainConv(const Shape& x, const Shape& weights, const Shape& y, const ConvGeometry& geometry)
    : n_(x[0]),
      c_(x[1]),
      h_(x[2]),
      w_(x[3]),
      k_(weights[0]),
      kh_(weights[2]),
      kw_(weights[3]),
      out_h_(y[2]),
      out_w_(y[3]),
      geometry_(geometry) {}

PlainConv::Range PlainConv::valid(std::int64_t out, std::int64_t size, std::int64_t stride, std::int64_t tap,
                                  std::int64_t pad) {
    const std::int64_t before = pad - tap;  // elements of padding that the first window has at this tap
    const std::int64_t begin = before > 0 ? ceil_div(before, stride) : 0;
    const std::int64_t last = size - 1 + before;
    return {std::min(begin, out), last < 0 ? std::min(begin, out) : std::max(begin, std::min(out, last / stride + 1))};
}

template <class Row>
void PlainConv::for_rows(std::int64_t i, std::int64_t j, const Row& row) const {
    const std::int64_t tap_h = i * geometry_.dilation_h, tap_w = j * geometry_.dilation_w;
    const Range rows = valid(out_h_, h_, geometry_.stride_h, tap_h, geometry_.pad_h);
    const Range columns = valid(out_w_, w_, geometry_.stride_w, tap_w, geometry_.pad_w);
    if (columns.begin >= columns.end) return;
    for (std::int64_t o = rows.begin; o < rows.end; ++o) {
        const std::int64_t input_row = o * geometry_.stride_h + tap_h - geometry_.pad_h;
        const std::int64_t input_column = columns.begin * geometry_.stride_w + tap_w - geometry_.pad_w;
        row(o * out_w_ + columns.begin, input_row * w_ + input_column, columns.end - columns.begin);
    }
}

template <class T>
void PlainConv::forward(const T* x, const T* weights, const T* bias, T* y, int threads) const {
    const std::int64_t cs = group_c(), ks = group_k();
    for_parts(threads, n_ * k_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) {
            const std::int64_t k = p % k_;
            T* const plane = y + p * out_h_ * out_w_;
            std::fill_n(plane, out_h_ * out_w_, bias != nullptr ? bias[k] : T(0));
            for (std::int64_t c = 0; c < cs; ++c)
                for (std::int64_t tap = 0; tap < kh_ * kw_; ++tap) {
                    const T weight = weights[(k * cs + c) * kh_ * kw_ + tap];
                    const T* const from = x + (p / k_ * c_ + k / ks * cs + c) * h_ * w_;
                    for_rows(tap / kw_, tap % kw_, [&](std::int64_t out, std::int64_t in, std::int64_t count) {
                        for (std::int64_t o = 0; o < count; ++o)
                            plane[out + o] += weight * from[in + o * geometry_.stride_w];
                    });
                }
        }
    });
}

template <class T>
void PlainConv::backward_data(const T* dy, const T* weights, T* dx, int threads) const {
    const std::int64_t cs = group_c(), ks = group_k();
    for_parts(threads, n_ * c_, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) {
            const std::int64_t c = p % c_;
            T* const plane = dx + p * h_ * w_;
            std::fill_n(plane, h_ * w_, T(0));
            for (std::int64_t k = c / cs * ks; k < (c / cs + 1) * ks; ++k)
                for (std::int64_t tap = 0; tap < kh_ * kw_; ++tap) {
                    const T weight = weights[(k * cs + c % cs) * kh_ * kw_ + tap];
                    const T* const from = dy + (p / c_ * k_ + k) * out_h_ * out_w_;
                    for_rows(tap / kw_, tap % kw_, [&](std::int64_t out, std::int64_t in, std::int64_t count) {
                        for (std::int64_t o = 0; o < count; ++o)
                            plane[in + o * geometry_.stride_w] += weight * from[out + o];
                    });
                }
        }
    });
}

template <class T>
void PlainConv::backward_weights(const T* x, const T* dy, T* dweights, T* db, int threads) const {
    const std::int64_t out_plane = out_h_ * out_w_, cs = group_c(), ks = group_k();
    for_parts(threads, k_ * cs, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p)
            for (std::int64_t tap = 0; tap < kh_ * kw_; ++tap) {
                T sum = 0;
                for (std::int64_t n = 0; n < n_; ++n) {
                    const T* const input = x + (n * c_ + p / cs / ks * cs + p % cs) * h_ * w_;
                    const T* const gradient = dy + (n * k_ + p / cs) * out_plane;
                    for_rows(tap / kw_, tap % kw_, [&](std::int64_t out, std::int64_t in, std::int64_t count) {
                        for (std::int64_t o = 0; o < count; ++o)
                            sum += gradient[out + o] * input[in + o * geometry_.stride_w];
                    });
                }
                dweights[p * kh_ * kw_ + tap] = sum;
            }
    });
    if (db == nullptr) return;
    for (std::int64_t k = 0; k < k_; ++k) {
        T sum = 0;
        for (std::int64_t n = 0; n < n_; ++n)
            for (std::int64_t i = 0; i < out_plane; ++i) sum += dy[(n * k_ + k) * out_plane + i];
        db[k] = sum;
    }
}

template void PlainConv::forward(const float*, const float*, const float*, float*, int) const;
template void PlainConv::forward(const double*, const double*, const double*, double*, int) const;
template void PlainConv::backward_data(const float*, const float*, float*, int) const;
template void PlainConv::backward_data(const double*, const double*, double*, int) const;
template void PlainConv::backward_weights(const float*, const float*, float*, float*, int) const;
template void PlainConv::backward_weights(const double*, const double*, double*, double*, int) const;

}  // namespace lockstep::cpu
