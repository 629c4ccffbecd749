// Softmax along a dimension that is not the innermost: threads compute packs of adjacent columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/ops/cuda/batch.h"
#include "lockstep/ops/cuda/column_tiles.h"
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
    RunningSum<T> sum;
    T largest;
    T unused = T(0);  // in place of padding

    LOCKSTEP_HD_INLINE void add(T x) {
        if (x == -std::numeric_limits<T>::infinity()) return;
        if (x > largest) rescale(x);
        // Not a number for infinity and NaN.
        sum.add(x == largest ? T(1) + (x - x) : std::exp(x - largest));
    }
    /// Adds several numbers, and makes the sum relative to their largest first. `quick`: for sums with 16 bits; the
    /// error of a power is at most 2^-17 of it.
    template <bool quick, int n>
    LOCKSTEP_HD_INLINE void add_all(const T (&x)[n]) {
        T most = largest;
        LOCKSTEP_UNROLL
        for (int i = 0; i < n; ++i) most = std::fmax(most, x[i]);
        if (most > largest) rescale(most);
        // Every power of negative infinity is 0, also if there is no other number yet.
        const T down = largest == -std::numeric_limits<T>::infinity() ? T(0) : largest;
        T powers[n];
        LOCKSTEP_UNROLL
        for (int i = 0; i < n; ++i) powers[i] = quick ? std::exp2((x[i] - down) * T(M_LOG2E)) : std::exp(x[i] - down);
        sum.add(sum_in_pairs(powers));
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
    static constexpr int held = 8;     // rows of a short column that are in registers

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
    ColumnTiles tiles() const { return {outer, size, inner}; }
    /// First pack of a column, whose packs are `inner` apart.
    LOCKSTEP_HD_INLINE std::int64_t first(std::int64_t column) const {
        const std::int64_t slice = quick_quotient(column, inner);
        return column + slice * (size - 1) * inner;
    }
    /// Calls use(load(pack), pack) for all packs of a column.
    template <class Load, class Use>
    LOCKSTEP_HD_INLINE void for_packs(std::int64_t column, const Load& load, const Use& use) const {
        const std::int64_t begin = first(column);
        for_loaded<at_once>(begin, begin + size * inner, inner, load, use);
    }
};

template <class Stored, int width, bool logarithm>
struct SumExponentialsOfColumns {
    using Plans = LongColumns;  // are_short has other kernels
    static constexpr int resident_blocks = std::is_same_v<Stored, float> && width > 1 ? 2 : 0;
    using T = UpcastType<Stored>;
    struct alignas(16) Value {
        Exponentials<T> of[width];
    };
    SoftmaxColumns columns;
    PackedInput<Stored, width> x;
    T* largest;  // (columns, width)
    T* sums;     // (columns, width); logarithms of the sums if `logarithm`

    LOCKSTEP_HD_INLINE Value zero() const {
        Value value;
        for (auto& each : value.of) each = {{}, -std::numeric_limits<T>::infinity()};
        return value;
    }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t column, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        constexpr int at_once = 8;  // rows that are scaled together
        const std::int64_t begin = columns.first(column), ahead = step * columns.inner;
        std::int64_t k = first, pack = begin + first * columns.inner;
        LOCKSTEP_NO_UNROLL
        for (; k + (at_once - 1) * step < end; k += at_once * step, pack += at_once * ahead)
            add_rows<at_once>(value, pack, ahead);
        LOCKSTEP_NO_UNROLL
        for (; k < end; k += step, pack += ahead) add_rows<1>(value, pack, ahead);
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

private:
    template <int rows>
    LOCKSTEP_HD_INLINE void add_rows(Value& value, std::int64_t pack, std::int64_t ahead) const {
        Pack<Stored, width> packs[rows];
        LOCKSTEP_UNROLL
        for (int i = 0; i < rows; ++i) packs[i] = x.load(pack + i * ahead);
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            T numbers[rows];
            LOCKSTEP_UNROLL
            for (int i = 0; i < rows; ++i) numbers[i] = upcast(packs[i].of[j]);
            value.of[j].template add_all<sizeof(Stored) == 2>(numbers);
        }
    }
};

/// Values that the elements of a column share.
template <class T>
struct SoftmaxShared {
    T largest;
    T last;  // reciprocal sum, or the logarithm of the sum
};

template <class Stored, int pack_width, bool logarithm>
struct SoftmaxOfColumns {
    static constexpr int width = pack_width;
    using T = UpcastType<Stored>;
    using Value = SoftmaxShared<T>;
    PackedInput<Stored, width> x;
    const T* largest;
    const T* sums;
    PackedOutput<Stored, width> y;

    LOCKSTEP_HD_INLINE Value value(std::int64_t column) const { return from(largest[column], sums[column]); }
    LOCKSTEP_HD_INLINE Pack<Stored, width> load(std::int64_t pack) const { return x.load(pack); }
    LOCKSTEP_HD_INLINE void store(std::int64_t pack, const Pack<Stored, width>& in, const Value (&of)[width]) const {
        Pack<Stored, width> out;
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            const T down = upcast(in.of[j]) - of[j].largest;
            out.of[j] = CastTo<Stored>::from(logarithm ? down - of[j].last : std::exp(down) * of[j].last);
        }
        y.store(pack, out);
    }
    /// `sum`: its logarithm if `logarithm`.
    static LOCKSTEP_HD_INLINE Value from(T most, T sum) { return {most, logarithm ? sum : T(1) / sum}; }
};

/// Columns of few rows: one thread computes all of a column, in registers if it has at most SoftmaxColumns::held rows.
template <class Stored, int width, bool logarithm>
struct SoftmaxOfShortColumns {
    using T = UpcastType<Stored>;
    static constexpr int held = SoftmaxColumns::held;
    SumExponentialsOfColumns<Stored, width, logarithm> sums;
    SoftmaxOfColumns<Stored, width, logarithm> results;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t column) const {
        if (sums.columns.size <= held) return in_registers(column);
        auto value = sums.zero();
        sums.add_all(value, column, 0, sums.columns.size, 1);
        SoftmaxShared<T> shared[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            const T sum = value.of[j].sum.value();
            shared[j] = results.from(value.of[j].largest, logarithm ? std::log(sum) : sum);
        }
        sums.columns.for_packs(
            column, [&](std::int64_t pack) { return results.load(pack); },
            [&](const Pack<Stored, width>& in, std::int64_t pack) { results.store(pack, in, shared); });
    }

private:
    LOCKSTEP_HD_INLINE void in_registers(std::int64_t column) const {
        const std::int64_t begin = sums.columns.first(column), inner = sums.columns.inner;
        const auto size = static_cast<int>(sums.columns.size);
        Pack<T, width> values[held];
        T largest[width], last[width];
        LOCKSTEP_UNROLL
        for (int i = 0; i < held; ++i) {
            if (i >= size) break;
            const auto stored = results.load(begin + i * inner);
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j) values[i].of[j] = upcast(stored.of[j]);
        }
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) {
            largest[j] = -std::numeric_limits<T>::infinity();
            LOCKSTEP_UNROLL
            for (int i = 0; i < held; ++i)
                if (i < size) largest[j] = std::fmax(largest[j], values[i].of[j]);
            T sum = T(0);
            LOCKSTEP_UNROLL
            for (int i = 0; i < held; ++i) {
                if (i >= size) break;
                const T down = values[i].of[j] - largest[j], power = std::exp(down);
                sum += power;
                values[i].of[j] = logarithm ? down : power;
            }
            last[j] = logarithm ? std::log(sum) : T(1) / sum;
        }
        LOCKSTEP_UNROLL
        for (int i = 0; i < held; ++i) {
            if (i >= size) break;
            Pack<Stored, width> out;
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j)
                out.of[j] = CastTo<Stored>::from(logarithm ? values[i].of[j] - last[j] : values[i].of[j] * last[j]);
            results.y.store(begin + i * inner, out);
        }
    }
};

/// Sums of dy, or of its product with y.
template <class Stored, int width, bool logarithm>
struct SumColumns {
    using Plans = LongColumns;  // are_short has other kernels
    static constexpr int resident_blocks = std::is_same_v<Stored, float> && width > 1 && logarithm ? 4 : 0;
    using T = UpcastType<Stored>;
    struct alignas(16) Value {
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

template <class Stored, int pack_width, bool logarithm>
struct SoftmaxBackwardOfColumns {
    static constexpr int width = pack_width;
    using T = UpcastType<Stored>;
    using Value = T;
    PackedInput<Stored, width> dy, y;
    const T* sums;
    PackedOutput<Stored, width> dx;

    struct Packs {
        Pack<Stored, width> dy, y;
    };
    LOCKSTEP_HD_INLINE T value(std::int64_t column) const { return sums[column]; }
    LOCKSTEP_HD_INLINE Packs load(std::int64_t pack) const { return {dy.load(pack), y.load(pack)}; }
    LOCKSTEP_HD_INLINE void store(std::int64_t pack, const Packs& in, const T (&sum)[width]) const {
        Pack<Stored, width> out;
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j)
            out.of[j] =
                CastTo<Stored>::from(softmax_gradient<logarithm>(upcast(in.dy.of[j]), upcast(in.y.of[j]), sum[j]));
        dx.store(pack, out);
    }
};

/// One thread per column, as in SoftmaxOfShortColumns.
template <class Stored, int width, bool logarithm>
struct SoftmaxBackwardOfShortColumns {
    using T = UpcastType<Stored>;
    using Results = SoftmaxBackwardOfColumns<Stored, width, logarithm>;
    static constexpr int held = SoftmaxColumns::held;
    SumColumns<Stored, width, logarithm> sums;
    Results results;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t column) const {
        if (sums.columns.size <= held) return in_registers(column);
        auto value = sums.zero();
        sums.add_all(value, column, 0, sums.columns.size, 1);
        T sum[width];
        LOCKSTEP_UNROLL
        for (int j = 0; j < width; ++j) sum[j] = value.of[j].value();
        sums.columns.for_packs(
            column, [&](std::int64_t pack) { return results.load(pack); },
            [&](const auto& in, std::int64_t pack) { results.store(pack, in, sum); });
    }

private:
    LOCKSTEP_HD_INLINE void in_registers(std::int64_t column) const {
        const std::int64_t begin = sums.columns.first(column), inner = sums.columns.inner;
        const auto size = static_cast<int>(sums.columns.size);
        typename Results::Packs packs[held];
        LOCKSTEP_UNROLL
        for (int i = 0; i < held; ++i)
            if (i < size) packs[i] = results.load(begin + i * inner);
        T sum[width] = {};
        LOCKSTEP_UNROLL
        for (int i = 0; i < held; ++i) {
            if (i >= size) break;
            LOCKSTEP_UNROLL
            for (int j = 0; j < width; ++j) {
                const T gradient = upcast(packs[i].dy.of[j]);
                sum[j] += logarithm ? gradient : gradient * upcast(packs[i].y.of[j]);
            }
        }
        LOCKSTEP_UNROLL
        for (int i = 0; i < held; ++i)
            if (i < size) results.store(begin + i * inner, packs[i], sum);
    }
};

}  // namespace lockstep::cuda
