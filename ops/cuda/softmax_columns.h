// Softmax along a dimension that is not the innermost: threads compute packs of adjacent columns.
#pragma once

#include <algorithm>
#include <limits>

#include "lockstep/ops/cuda/batch.h"
#include "lockstep/ops/cuda/image_index.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"

namespace lockstep::cuda {

/// Sum of exp(x - largest).
template <class T>
struct Exponentials {
    T largest;
    RunningSum<T> sum;

    LOCKSTEP_HD_INLINE void add(T x) {
        if (x == -std::numeric_limits<T>::infinity()) return;
        if (x > largest) rescale(x);
        // Not a number for infinity and NaN.
        sum.add(x == largest ? T(1) + (x - x) : std::exp(x - largest));
    }
    LOCKSTEP_HD_INLINE void add(const Exponentials& other) {
        Exponentials more = other;
        if (more.largest > largest)
            rescale(more.largest);
        else
            more.rescale(largest);
        sum.add(more.sum);
    }

private:
    /// Makes the sum relative to a larger `to`.
    LOCKSTEP_HD_INLINE void rescale(T to) {
        if (largest != to) sum.scale(std::exp(largest - to));
        largest = to;
    }
};

/// Gradient of an element x from dy, y and the sum of its row.
template <bool logarithm, class T>
LOCKSTEP_HD_INLINE T softmax_gradient(T dy, T y, T sum) {
    return logarithm ? dy - std::exp(y) * sum : y * (dy - sum);
}

/// A dense tensor (outer, size, inner), of which softmax is computed along `size`. `inner` counts packs.
struct SoftmaxColumns {
    std::int64_t outer = 1, size = 1, inner = 1;

    /// Elements of a pack. Sums of more would leave registers for few threads.
    template <class Stored>
    static constexpr int width = std::min(widest<Stored>, 4);
    static constexpr int at_once = 4;  // loads of a thread in flight

    SoftmaxColumns(const Shape& shape, int dim, int of_pack) : size(shape[dim]) {
        for (int d = 0; d < shape.dims(); ++d)
            if (d != dim) (d < dim ? outer : inner) *= shape[d];
        inner /= of_pack;
    }
    /// Whether a kernel for columns suits a softmax of x along `dim`.
    static bool fits(const TensorMeta& x, int dim, int of_pack) {
        const std::int64_t elements = SoftmaxColumns(x.shape, dim, 1).inner;
        return x.is_contiguous() && elements > 1 && elements % of_pack == 0;
    }
    std::int64_t columns() const { return outer * inner; }
    ReducePlan plan() const { return ReducePlan::make(columns(), size, true); }
    /// Whether one thread adds up all of a column.
    static bool are_short(const ReducePlan& plan) { return plan.lanes == 1 && plan.parts == 1; }
    /// Threads of a column in an elementwise kernel.
    std::int64_t rows_ahead() const {
        return std::clamp<std::int64_t>(enough_threads / std::max<std::int64_t>(columns(), 1), 1,
                                        std::max<std::int64_t>(ceil_div(size, at_once), 1));
    }
    /// First pack of a column, whose packs are `inner` apart.
    LOCKSTEP_HD_INLINE std::int64_t first(std::int64_t column) const {
        const std::int64_t slice = quick_quotient(column, inner);
        return column + slice * (size - 1) * inner;
    }
    /// Calls use(load(pack), pack) for the packs of one of rows_ahead * columns threads.
    template <class Load, class Use>
    LOCKSTEP_HD_INLINE void for_packs(std::int64_t column, std::int64_t row, std::int64_t ahead, const Load& load,
                                      const Use& use) const {
        const std::int64_t begin = first(column);
        for_loaded<at_once>(begin + row * inner, begin + size * inner, ahead * inner, load, use);
    }
};

template <class Stored, int width, bool logarithm>
struct SumExponentialsOfColumns {
    using Plans = LongColumns;  // are_short has other kernels
    using T = UpcastType<Stored>;
    struct Value {
        Exponentials<T> of[width];
    };
    SoftmaxColumns columns;
    PackedInput<Stored, width> x;
    T* largest;  // (columns, width)
    T* sums;     // (columns, width); logarithms of the sums if `logarithm`

    LOCKSTEP_HD_INLINE Value zero() const {
        Value value;
        for (auto& each : value.of) each = {-std::numeric_limits<T>::infinity(), {}};
        return value;
    }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t column, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        const std::int64_t begin = columns.first(column);
        for_loaded<SoftmaxColumns::at_once>(
            first, end, step, [&](std::int64_t k) { return x.load(begin + k * columns.inner); },
            [&](const Pack<Stored, width>& pack, std::int64_t) {
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) value.of[j].add(upcast(pack.of[j]));
            });
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        for (int j = 0; j < width; ++j) value.of[j].add(other.of[j]);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t column, const Value& value) const {
        for (int j = 0; j < width; ++j) {
            const T sum = value.of[j].sum.value();
            largest[column * width + j] = value.of[j].largest;
            sums[column * width + j] = logarithm ? std::log(sum) : sum;
        }
    }
};

/// One thread per column and row of the first `ahead`.
template <class Stored, int width, bool logarithm>
struct SoftmaxOfColumns {
    using T = UpcastType<Stored>;
    SoftmaxColumns columns;
    std::int64_t count, ahead;  // columns, rows
    PackedInput<Stored, width> x;
    const T* largest;
    const T* sums;
    PackedOutput<Stored, width> y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const std::int64_t row = quick_quotient(thread, count), column = thread - row * count;
        T most[width], last[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            most[j] = largest[column * width + j];
            last[j] = logarithm ? sums[column * width + j] : T(1) / sums[column * width + j];
        }
        write(column, row, ahead, most, last);
    }
    /// Writes rows `row`, row + step, ... of a column.
    LOCKSTEP_HD_INLINE void write(std::int64_t column, std::int64_t row, std::int64_t step, const T (&most)[width],
                                  const T (&last)[width]) const {
        columns.for_packs(
            column, row, step, [&](std::int64_t pack) { return x.load(pack); },
            [&](const Pack<Stored, width>& in, std::int64_t pack) {
                Pack<Stored, width> out;
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) {
                    const T down = upcast(in.of[j]) - most[j];
                    out.of[j] = CastTo<Stored>::from(logarithm ? down - last[j] : std::exp(down) * last[j]);
                }
                y.store(pack, out);
            });
    }
};

/// Columns of few rows: one thread reads and writes all of a column.
template <class Stored, int width, bool logarithm>
struct SoftmaxOfShortColumns {
    using T = UpcastType<Stored>;
    SumExponentialsOfColumns<Stored, width, logarithm> sums;
    SoftmaxOfColumns<Stored, width, logarithm> results;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t column) const {
        auto value = sums.zero();
        sums.add_all(value, column, 0, sums.columns.size, 1);
        T most[width], last[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            const T sum = value.of[j].sum.value();
            most[j] = value.of[j].largest;
            last[j] = logarithm ? std::log(sum) : T(1) / sum;
        }
        results.write(column, 0, 1, most, last);
    }
};

/// Sums of dy, or of its product with y.
template <class Stored, int width, bool logarithm>
struct SumColumns {
    using Plans = LongColumns;  // are_short has other kernels
    using T = UpcastType<Stored>;
    struct Value {
        RunningSum<T> of[width];
    };
    SoftmaxColumns columns;
    PackedInput<Stored, width> dy, y;
    T* sums;  // (columns, width)

    struct Packs {
        Pack<Stored, width> dy, y;
    };
    LOCKSTEP_HD_INLINE Packs load(std::int64_t pack) const {
        if constexpr (logarithm)
            return {dy.load(pack), {}};
        else
            return {dy.load(pack), y.load(pack)};
    }
    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t column, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        const std::int64_t begin = columns.first(column);
        for_loaded<SoftmaxColumns::at_once>(
            first, end, step, [&](std::int64_t k) { return load(begin + k * columns.inner); },
            [&](const Packs& packs, std::int64_t) {
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) {
                    const T gradient = upcast(packs.dy.of[j]);
                    value.of[j].add(logarithm ? gradient : gradient * upcast(packs.y.of[j]));
                }
            });
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        for (int j = 0; j < width; ++j) value.of[j].add(other.of[j]);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t column, const Value& value) const {
        for (int j = 0; j < width; ++j) sums[column * width + j] = value.of[j].value();
    }
};

template <class Stored, int width, bool logarithm>
struct SoftmaxBackwardOfColumns {
    using T = UpcastType<Stored>;
    SoftmaxColumns columns;
    std::int64_t count, ahead;  // columns, rows
    PackedInput<Stored, width> dy, y;
    const T* sums;
    PackedOutput<Stored, width> dx;

    struct Packs {
        Pack<Stored, width> dy, y;
    };
    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        const std::int64_t row = quick_quotient(thread, count), column = thread - row * count;
        T sum[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) sum[j] = sums[column * width + j];
        write(column, row, ahead, sum);
    }
    /// Writes rows `row`, row + step, ... of a column.
    LOCKSTEP_HD_INLINE void write(std::int64_t column, std::int64_t row, std::int64_t step,
                                  const T (&sum)[width]) const {
        columns.for_packs(
            column, row, step,
            [&](std::int64_t pack) {
                return Packs{dy.load(pack), y.load(pack)};
            },
            [&](const Packs& in, std::int64_t pack) {
                Pack<Stored, width> out;
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j)
                    out.of[j] = CastTo<Stored>::from(
                        softmax_gradient<logarithm>(upcast(in.dy.of[j]), upcast(in.y.of[j]), sum[j]));
                dx.store(pack, out);
            });
    }
};

template <class Stored, int width, bool logarithm>
struct SoftmaxBackwardOfShortColumns {
    using T = UpcastType<Stored>;
    SumColumns<Stored, width, logarithm> sums;
    SoftmaxBackwardOfColumns<Stored, width, logarithm> results;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t column) const {
        auto value = sums.zero();
        sums.add_all(value, column, 0, sums.columns.size, 1);
        T sum[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) sum[j] = value.of[j].value();
        results.write(column, 0, 1, sum);
    }
};

}  // namespace lockstep::cuda
