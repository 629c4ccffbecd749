// Random numbers. They are drawn by counters (random.h), so results do not depend on how elements are shared among
// threads.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/report.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/threshold.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/ops/internal/random_operations.h"

namespace lockstep::cuda {

namespace {

using Words = std::array<std::uint32_t, 4>;

/// Bits of a uniform number; f64 has 53 whatever this is.
template <class Stored>
constexpr int digits_of = std::is_same_v<Stored, Half>       ? 11
                          : std::is_same_v<Stored, BFloat16> ? 8
                                                             : 24;

/// The words of number k of a block.
template <class T>
struct WordsOf {
    std::uint32_t at[element::words_of_number<T>];
    LOCKSTEP_HD_INLINE WordsOf(const Words& block, unsigned k) {
        LOCKSTEP_UNROLL
        for (unsigned w = 0; w < element::words_of_number<T>; ++w) at[w] = block[element::words_of_number<T> * k + w];
    }
};

// Values of the numbers of a block: value(block, k, e) for number k of a block, which is that of element e.

template <class Stored>
struct Uniform {
    using T = UpcastType<Stored>;
    static constexpr int words = element::words_of_number<T>;
    LOCKSTEP_HD_INLINE Stored value(const Words& block, unsigned k, std::int64_t) const {
        return CastTo<Stored>::from(element::uniform_from<T>(WordsOf<T>(block, k).at, digits_of<Stored>));
    }
};

template <class Stored>
struct Normal {
    using T = UpcastType<Stored>;
    static constexpr int words = element::words_of_number<T>;
    LOCKSTEP_HD_INLINE Stored value(const Words& block, unsigned k, std::int64_t) const {
        return CastTo<Stored>::from(element::normal_from<T>(WordsOf<T>(block, k).at));
    }
};

template <class Stored>
struct OneOfTwo {
    static constexpr int words = 1;
    std::uint32_t threshold;
    Stored below, above;
    LOCKSTEP_HD_INLINE Stored value(const Words& block, unsigned k, std::int64_t) const {
        return is_below(block[k], threshold) ? below : above;
    }
};

template <class Stored>
struct BernoulliOf {
    using T = UpcastType<Stored>;
    static constexpr int words = element::words_of_number<T>;
    const Stored* p;
    LOCKSTEP_HD_INLINE Stored value(const Words& block, unsigned k, std::int64_t e) const {
        const T number = element::uniform_from<T>(WordsOf<T>(block, k).at, digits_of<T>);
        return CastTo<Stored>::from(number < upcast(p[e]) ? T(1) : T(0));
    }
};

template <class Stored>
struct NormalOf {
    using T = UpcastType<Stored>;
    static constexpr int words = element::words_of_number<T>;
    const Stored* std;
    LOCKSTEP_HD_INLINE Stored value(const Words& block, unsigned k, std::int64_t e) const {
        return CastTo<Stored>::from(element::normal_from<T>(WordsOf<T>(block, k).at) * upcast(std[e]));
    }
};

/// Four consecutive words are a Philox block, so one thread draws them.
template <class Stored, class Values>
struct DrawBlock {
    Stored* out;
    std::int64_t count;
    std::uint64_t counter;  // first word of element 0
    const StepCounters* step;
    std::uint32_t ordinal;
    Values values;
    bool aligned;  // chunks may be stored at once

    static constexpr int numbers = 4 / Values::words;
    static constexpr int width = std::min(numbers, chunk_elements(sizeof(Stored))), chunks = numbers / width;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::uint64_t block = (counter >> 2) + static_cast<std::uint64_t>(i);
        const Words words = philox(*step, ordinal, block);
        const std::int64_t first = static_cast<std::int64_t>(block * 4 - counter) / Values::words;
        Stored made[chunks][width];
        LOCKSTEP_UNROLL
        for (unsigned k = 0; k < numbers; ++k) {
            const std::int64_t e = first + k;
            made[k / width][k % width] = e >= 0 && e < count ? values.value(words, k, e) : Stored();
        }
        const bool whole = aligned && first + numbers <= count;
        LOCKSTEP_UNROLL
        for (int c = 0; c < chunks; ++c) {
            const std::int64_t begin = first + c * width;
            if (whole) {
                store_chunk(made[c], out + begin);
                continue;
            }
            LOCKSTEP_UNROLL
            for (int k = 0; k < width; ++k)
                if (begin + k >= 0 && begin + k < count) out[begin + k] = made[c][k];
        }
    }
};

/// Draws the `count` elements of the output.
template <class Stored, class Values>
void enqueue_draws(const Queue& queue, const char* name, DrawBy by, std::int64_t count, std::int64_t row_size,
                   const Values& values, const KernelArgs& v) {
    using Draw = DrawBlock<Stored, Values>;
    const std::uint64_t counter = Values::words * element::first_draw(by, v.first_row, row_size, v.shard);
    const std::uint64_t end = counter + static_cast<std::uint64_t>(Values::words * count);
    const auto blocks = static_cast<std::int64_t>(((end + 3) >> 2) - (counter >> 2));
    const bool aligned = counter % 4 == 0 && is_aligned(v.out[0], Draw::width * sizeof(Stored));
    launch(queue, name, blocks, Draw{v.output<Stored>(0), count, counter, v.step, v.ordinal, values, aligned});
}

KernelPtr make_random_values(const RandomValues& op, KernelRequest& request) {
    const Shape& shape = request.out[0].shape;
    const std::int64_t count = shape.numel(), row_size = count > 0 && shape.dims() > 0 ? count / shape[0] : 0;
    return visit_any_float(op.name, request.out[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const auto made = [&](auto values) {
            return make_cuda_kernel(request, [=, by = op.by](const Queue& queue, const KernelArgs& v) {
                enqueue_draws<Stored>(queue, RandomValues::name, by, count, row_size, values, v);
            });
        };
        const auto stored = [](T value) { return CastTo<Stored>::from(value); };
        switch (op.distribution) {
            case Distribution::uniform: return made(Uniform<Stored>{});
            case Distribution::normal: return made(Normal<Stored>{});
            case Distribution::bernoulli: return made(OneOfTwo<Stored>{threshold_of(op.p), stored(T(1)), stored(T(0))});
            case Distribution::dropout: break;
        }
        return made(OneOfTwo<Stored>{threshold_of(op.p), stored(T(0)), stored(element::dropout_factor<T>(op.p))});
    });
}

/// Reports the first parameter that is not in [0, largest].
struct FindBadParameter {
    using Plans = NoColumns;
    using Value = std::int64_t;  // its position; -1 if there is no such parameter
    DType dtype;
    double largest;
    StatusCode code;
    std::int64_t per_row;  // parameters in a row
    const void* x = nullptr;
    std::int64_t first_row = 0;  // row of the first parameter
    StatusWord* status = nullptr;
    const StepCounters* step = nullptr;
    int shard = 0;

    LOCKSTEP_HD_INLINE double value(std::int64_t i) const {
        if (dtype == DType::f64) return static_cast<const double*>(x)[i];
        if (dtype == DType::f32) return static_cast<double>(static_cast<const float*>(x)[i]);
        if (dtype == DType::f16) return static_cast<double>(upcast(static_cast<const Half*>(x)[i]));
        return static_cast<double>(upcast(static_cast<const BFloat16*>(x)[i]));
    }
    LOCKSTEP_HD_INLINE Value zero() const { return -1; }
    LOCKSTEP_HD_INLINE void add(Value& bad, std::int64_t, std::int64_t i) const {
        const double number = value(i);
        if (!(number >= 0 && number <= largest)) join(bad, i);
    }
    LOCKSTEP_HD_INLINE void join(Value& bad, const Value& other) const {
        if (other >= 0 && (bad < 0 || other < bad)) bad = other;
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t, const Value& bad) const {
        if (bad < 0) return;
        const double number = value(bad);
        std::int64_t bits;
        memcpy(&bits, &number, sizeof bits);
        report(status, code, shard, step, first_row + bad / per_row, bits);
    }
};

KernelPtr make_random_values_of(const RandomValuesOf& op, KernelRequest& request) {
    request.want_contiguous(0);
    const TensorMeta& meta = request.out[0];
    const std::int64_t count = meta.numel();
    const bool is_normal = op.distribution == Distribution::normal;
    const FindBadParameter check{meta.dtype, is_normal ? std::numeric_limits<double>::infinity() : 1,
                                 is_normal ? StatusCode::deviation_negative : StatusCode::probability_out_of_range,
                                 op.per_row};
    const auto plan = ReducePlan::make(1, count, false);
    return visit_any_float(op.name, meta.dtype, [&](auto zero) {
        using Stored = decltype(zero);
        return make_cuda_kernel(
            request,
            [=](const Queue& queue, const KernelArgs& v) {
                FindBadParameter find = check;
                find.x = v.in[0];
                find.first_row = op.by == DrawBy::row ? v.first_row : 0;
                find.status = v.status;
                find.step = v.step;
                find.shard = v.shard;
                reduce(queue, "parameter_check", plan, find, v.scratch);
                const auto* parameters = v.input<Stored>(0);
                if (is_normal)
                    enqueue_draws<Stored>(queue, op.name, op.by, count, op.per_row, NormalOf<Stored>{parameters}, v);
                else
                    enqueue_draws<Stored>(queue, op.name, op.by, count, op.per_row, BernoulliOf<Stored>{parameters}, v);
            },
            plan.scratch_bytes<FindBadParameter>());
    });
}

}  // namespace

void add_random_kernels(KernelTable& table) {
    table.add<RandomValues, make_random_values>();
    table.add<RandomValuesOf, make_random_values_of>();
    table.add_half_types<RandomValues, make_random_values>();
    table.add_half_types<RandomValuesOf, make_random_values_of>();
}

}  // namespace lockstep::cuda
