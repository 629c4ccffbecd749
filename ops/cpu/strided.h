// Joint iteration over several strided tensors of one shape.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/runtime/tensor.h"

namespace lockstep::cpu {

/// `count` operands of one shape (stride 0 in broadcast dimensions). Dimensions are merged if all operands allow it: an
/// outer odometer over rows, and an innermost run with one stride per operand.
template <std::size_t count>
class StridedWalk {
public:
    using Offsets = std::array<std::int64_t, count>;

    StridedWalk(const Shape& shape, const std::array<Shape, count>& strides) {
        for (int i = 0; i < shape.dims(); ++i) {
            if (shape[i] == 1) continue;
            Offsets step;
            for (std::size_t k = 0; k < count; ++k) step[k] = strides[k][i];
            if (dims_ > 0 && merges(step, shape[i])) {
                sizes_[last()] *= shape[i];
                steps_[last()] = step;
            } else {
                sizes_[static_cast<std::size_t>(dims_)] = shape[i];
                steps_[static_cast<std::size_t>(dims_)] = step;
                ++dims_;
            }
        }
        if (shape.numel() == 0) {
            rows_ = 0;
            return;
        }
        if (dims_ > 0) {
            --dims_;
            run_ = sizes_[static_cast<std::size_t>(dims_)];
            run_steps_ = steps_[static_cast<std::size_t>(dims_)];
        } else {
            run_steps_.fill(1);
        }
        for (int i = 0; i < dims_; ++i) rows_ *= sizes_[static_cast<std::size_t>(i)];
    }

    std::int64_t rows() const { return rows_; }
    std::int64_t run() const { return run_; }
    /// Distance between consecutive elements in a run, per operand.
    const Offsets& steps() const { return run_steps_; }

    /// Calls row(offsets) for rows [begin, end), in order.
    template <class Row>
    void for_rows(std::int64_t begin, std::int64_t end, const Row& row) const {
        if (begin >= end) return;
        std::array<std::int64_t, Shape::max_dims> index{};
        Offsets at{};
        std::int64_t rest = begin;
        for (int i = dims_ - 1; i >= 0; --i) {
            const auto d = static_cast<std::size_t>(i);
            index[d] = rest % sizes_[d];
            rest /= sizes_[d];
            for (std::size_t k = 0; k < count; ++k) at[k] += index[d] * steps_[d][k];
        }
        for (std::int64_t r = begin;;) {
            row(at);
            if (++r == end) return;
            for (int i = dims_ - 1; i >= 0; --i) {
                const auto d = static_cast<std::size_t>(i);
                for (std::size_t k = 0; k < count; ++k) at[k] += steps_[d][k];
                if (++index[d] < sizes_[d]) break;
                for (std::size_t k = 0; k < count; ++k) at[k] -= sizes_[d] * steps_[d][k];
                index[d] = 0;
            }
        }
    }

private:
    std::size_t last() const { return static_cast<std::size_t>(dims_ - 1); }
    /// Whether a dimension of `size` and `step` continues the last one.
    bool merges(const Offsets& step, std::int64_t size) const {
        for (std::size_t k = 0; k < count; ++k)
            if (steps_[last()][k] != size * step[k]) return false;
        return true;
    }

    std::array<std::int64_t, Shape::max_dims> sizes_{};
    std::array<Offsets, Shape::max_dims> steps_{};
    int dims_ = 0;
    std::int64_t rows_ = 1, run_ = 1;
    Offsets run_steps_{};
};

/// Strides of `meta` when it is broadcast to `shape`.
inline Shape broadcast_strides(const TensorMeta& meta, const Shape& shape) {
    Shape strides = shape;
    const int missing = shape.dims() - meta.shape.dims();
    for (int i = 0; i < shape.dims(); ++i)
        strides[i] = i < missing || meta.shape[i - missing] == 1 ? 0 : meta.strides[i - missing];
    return strides;
}

}  // namespace lockstep::cpu
