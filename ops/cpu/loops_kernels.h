// The loops of loops.h. Included only by loops_generic.cpp, loops_avx2.cpp and loops_avx512.cpp, which set
// LOCKSTEP_LOOPS to the namespace of their instruction set. As in simd.h, code here may call only inline functions that
// are always inlined: otherwise the linker might keep a copy that old processors cannot run.
#pragma once

#include "lockstep/ops/cpu/loops_interpolate.h"
#include "lockstep/ops/cpu/loops_linear.h"
#include "lockstep/ops/cpu/loops_pooling.h"
#include "lockstep/ops/cpu/loops_product.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/runtime/internal/shard_tree.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(LOCKSTEP_HAS_SLEEF) && defined(__AVX2__)
#include "lockstep/ops/cpu/number_lanes.h"
#endif

#ifndef LOCKSTEP_LOOPS
#error "included only by the sources that are compiled for one instruction set"
#endif

namespace lockstep::cpu::LOCKSTEP_LOOPS {

/// The tables of this instruction set.
extern const Loops<float> floats;
extern const Loops<double> doubles;

template <class T, class F, int varies>
void binary(const T* a, const T* b, T* y, Index n) {
    const T one = varies == 1 ? *b : *a;
    LOCKSTEP_FOR(i, n) y[i] = F().value(varies == 2 ? one : a[i], varies == 1 ? one : b[i]);
}

template <class T, class... Functions>
constexpr void add_binary_loops(Loops<T>& table, const std::tuple<Functions...>*) {
    table.binary = {{{binary<T, Functions, 0>, binary<T, Functions, 1>, binary<T, Functions, 2>}...}};
}

#if defined(LOCKSTEP_HAS_SLEEF) && defined(__AVX2__)
/// Calls apply(first element, how many) for whole registers, then for the rest.
template <class T, class Apply>
inline __attribute__((always_inline)) void for_registers(Index n, Apply apply) {
    constexpr Index count = NumberLanes<T>::count;
    Index i = 0;
    for (; i + count <= n; i += count) apply(i, count);
    if (i < n) apply(i, n - i);
}

/// n elements, at most those of one register; the other lanes are 0.
template <class T>
inline __attribute__((always_inline)) NumberLanes<T> load_lanes(const T* from, Index n) {
    if (n == NumberLanes<T>::count) return NumberLanes<T>::load(from);
    T whole[NumberLanes<T>::count] = {};
    for (Index i = 0; i < n; ++i) whole[i] = from[i];
    return NumberLanes<T>::load(whole);
}
template <class T>
inline __attribute__((always_inline)) void store_lanes(NumberLanes<T> lanes_to_store, T* to, Index n) {
    if (n == NumberLanes<T>::count) {
        lanes_to_store.store(to);
        return;
    }
    T whole[NumberLanes<T>::count];
    lanes_to_store.store(whole);
    for (Index i = 0; i < n; ++i) to[i] = whole[i];
}

template <class F>
constexpr bool by_registers = Elementary<F>;
#else
template <class F>
constexpr bool by_registers = false;
#endif

template <class T, class F>
void unary(const void* any, const T* x, T* y, Index n) {
    const F function = *static_cast<const F*>(any);
    if constexpr (by_registers<F>) {
        for_registers<T>(
            n, [&](Index i, Index count) __attribute__((always_inline)) {
                store_lanes(function.value(load_lanes(x + i, count)), y + i, count);
            });
    } else {
        LOCKSTEP_FOR(i, n) y[i] = function.value(x[i]);
    }
}

template <class T, class F>
void unary_backward(const void* any, const T* dy, const T* saved, T* dx, Index n) {
    const F function = *static_cast<const F*>(any);
    if constexpr (by_registers<F>) {
        for_registers<T>(
            n, [&](Index i, Index count) __attribute__((always_inline)) {
                store_lanes(function.gradient(load_lanes(dy + i, count), load_lanes(saved + i, count)), dx + i, count);
            });
    } else if constexpr (F::saves == Saves::nothing) {
        LOCKSTEP_FOR(i, n) dx[i] = function.gradient(dy[i], T(0));
    } else {
        LOCKSTEP_FOR(i, n) dx[i] = function.gradient(dy[i], saved[i]);
    }
}

template <class T, class... Functions>
constexpr void add_unary_loops(Loops<T>& table, const std::tuple<Functions...>*) {
    table.unary = {unary<T, Functions>...};
    table.unary_backward = {unary_backward<T, Functions>...};
}

template <class T>
void affine(const T* x, T* y, Index n, T scale, T shift) {
    LOCKSTEP_FOR(i, n) y[i] = element::affine(x[i], scale, shift);
}

template <class T>
void fill(T* y, Index n, T value) {
    LOCKSTEP_FOR(i, n) y[i] = value;
}

/// Adds up the accumulators pairwise.
inline __attribute__((always_inline)) double fold(double* sums) {
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return sums[0];
}

/// sums[i % lanes] += term(i, i % lanes). At most 64 terms are added up in T, so that rounding errors do not grow with
/// n.
template <class T, class Term>
inline __attribute__((always_inline)) void accumulate(double* sums, Index n, Term term) {
    constexpr Index block = 64 * lanes;
    for (Index begin = 0; begin < n; begin += block) {
        const Index end = smaller(n, begin + block);
        T local[lanes] = {};
        Index i = begin;
        for (; i + lanes <= end; i += lanes)
            for (int j = 0; j < lanes; ++j) local[j] += term(i + j, j);
        for (int j = 0; i + j < end; ++j) local[j] += term(i + j, j);
        for (int j = 0; j < lanes; ++j) sums[j] += static_cast<double>(local[j]);
    }
}

/// y[i] = value(i, i % lanes)
template <class T, class Value>
inline __attribute__((always_inline)) void map_lanes(T* y, Index n, Value value) {
    Index i = 0;
    for (; i + lanes <= n; i += lanes) {
        _Pragma("GCC ivdep") for (int j = 0; j < lanes; ++j) y[i + j] = value(i + j, j);
    }
    for (int j = 0; i + j < n; ++j) y[i + j] = value(i + j, j);
}

template <class T>
double sum(const T* x, Index n) {
    double sums[lanes] = {};
    accumulate<T>(sums, n, [=](Index i, int) { return x[i]; });
    return fold(sums);
}

template <class T>
double squared_error(const T* a, const T* b, Index n) {
    double sums[lanes] = {};
    accumulate<T>(sums, n, [=](Index i, int) { return (a[i] - b[i]) * (a[i] - b[i]); });
    return fold(sums);
}

template <class T>
void squared_error_backward(const T* a, const T* b, T factor, T* y, Index n) {
    LOCKSTEP_FOR(i, n) y[i] = factor * (a[i] - b[i]);
}

template <class T>
void lane_scale(const T* x, const T* factor, T* y, Index n) {
    map_lanes(y, n, [=](Index i, int j) { return x[i] * factor[j]; });
}

template <class T>
void lane_sum(const T* x, Index n, double* sums) {
    accumulate<T>(sums, n, [=](Index i, int) { return x[i]; });
}

template <class T>
void lane_deviation(const T* x, const T* mean, Index n, double* sums) {
    accumulate<T>(sums, n, [=](Index i, int j) { return (x[i] - mean[j]) * (x[i] - mean[j]); });
}

template <class T>
void lane_normalize(const T* x, const T* mean, const T* scale, const T* bias, T* y, Index n) {
    map_lanes(y, n, [=](Index i, int j) { return element::normalize(x[i], mean[j], scale[j], bias[j]); });
}

template <class T>
void lane_normalize_relu(const T* x, const T* mean, const T* scale, const T* bias, T* y, Index n) {
    map_lanes(y, n, [=](Index i, int j) {
        return functor::Relu().value(element::normalize(x[i], mean[j], scale[j], bias[j]));
    });
}

template <class T>
void lane_backward_sums(const T* x, const T* dy, const T* mean, Index n, double* sums_dy, double* sums_product) {
    accumulate<T>(sums_dy, n, [=](Index i, int) { return dy[i]; });
    accumulate<T>(sums_product, n, [=](Index i, int j) { return dy[i] * (x[i] - mean[j]); });
}

template <class T>
void lane_backward_data(const T* x, const T* dy, const T* mean, const T* scale, const T* mean_dy, const T* slope, T* dx,
                        Index n) {
    map_lanes(dx, n, [=](Index i, int j) {
        return element::normalize_backward(x[i], dy[i], mean[j], scale[j], mean_dy[j], slope[j]);
    });
}

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS

#include "lockstep/ops/cpu/loops_rows.h"

namespace lockstep::cpu::LOCKSTEP_LOOPS {

constexpr int philox_blocks = 32;

/// Words of random numbers, each in 64 bits, of which the upper 32 are not determined.
typedef std::uint64_t WideWords __attribute__((vector_size(register_bytes)));
constexpr int wide_words = register_bytes / 8;

/// Products of the lower 32 bits. GCC multiplies all 64 bits, which takes several times as long.
inline __attribute__((always_inline)) void multiply(const WideWords& a, std::uint32_t factor, WideWords& product) {
#if defined(__AVX512F__)
    // g++ 12 reports the intrinsic without a mask as a use of an uninitialised value.
    product = (WideWords)_mm512_maskz_mul_epu32(0xff, (__m512i)a, _mm512_set1_epi64(factor));
#elif defined(__AVX2__)
    product = (WideWords)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(factor));
#else
    product = (a & 0xffffffffu) * static_cast<std::uint64_t>(factor);
#endif
}

/// Elements of a and b in turn, from element `first` on.
template <int first, int... i>
inline __attribute__((always_inline)) void interleave(const WideWords& a, const WideWords& b, WideWords& made,
                                                      std::integer_sequence<int, i...>) {
    made = __builtin_shufflevector(a, b, (first + i / 2 + (i % 2) * wide_words)...);
}

/// Random bits of `philox_blocks` consecutive blocks, four words each: philox() of several blocks at a time.
inline __attribute__((always_inline)) void random_words(const StepCounters& state, std::uint32_t ordinal,
                                                        std::uint64_t block, std::uint32_t* __restrict words) {
    constexpr int together = register_bytes == 64 ? 4 : 2;  // registers of each word
    const std::uint64_t forward = (ordinal & inference_ordinals) != 0 ? state.inference : state.micro;
    for (int first = 0; first < philox_blocks; first += together * wide_words) {
        auto key0 = static_cast<std::uint32_t>(state.seed) ^ (ordinal * 0x9E3779B9u);
        auto key1 = static_cast<std::uint32_t>(state.seed >> 32) ^ static_cast<std::uint32_t>(forward) * 0x85EBCA6Bu;
        WideWords c0[together], c1[together], c2[together], c3[together];
        std::uint64_t numbers[together * wide_words];
        for (int i = 0; i < together * wide_words; ++i) numbers[i] = block + static_cast<std::uint64_t>(first + i);
        for (int r = 0; r < together; ++r) {
            c0[r] = read<WideWords>(numbers + r * wide_words);
            c1[r] = c0[r] >> 32;
            c2[r] = WideWords{} + static_cast<std::uint32_t>(state.step);
            c3[r] = WideWords{} + (static_cast<std::uint32_t>(state.step >> 32) ^ ordinal);
        }
        _Pragma("GCC unroll 10") for (int round = 0; round < 10; ++round) {
            for (int r = 0; r < together; ++r) {
                WideWords a, b;
                multiply(c0[r], 0xD2511F53u, a);
                multiply(c2[r], 0xCD9E8D57u, b);
                c0[r] = (b >> 32) ^ c1[r] ^ std::uint64_t{key0};
                c2[r] = (a >> 32) ^ c3[r] ^ std::uint64_t{key1};
                c1[r] = b;
                c3[r] = a;
            }
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        for (int r = 0; r < together; ++r) {
            const WideWords left = (c0[r] & 0xffffffffu) | c1[r] << 32, right = (c2[r] & 0xffffffffu) | c3[r] << 32;
            WideWords lower, upper;
            interleave<0>(left, right, lower, std::make_integer_sequence<int, wide_words>());
            interleave<wide_words / 2>(left, right, upper, std::make_integer_sequence<int, wide_words>());
            std::uint32_t* const to = words + 4 * (first + r * wide_words);
            write(to, lower);
            write(to + 2 * wide_words, upper);
        }
    }
}

/// out[i] = value(words of the number begin + i), for numbers of `per` words.
template <int per, class T, class Value>
inline __attribute__((always_inline)) void draw(T* out, Index begin, Index end, const Draws& draws,
                                                const Value& value) {
    std::uint32_t words[4 * philox_blocks];
    for (Index e = begin; e < end;) {
        const std::uint64_t counter = per * (draws.first + static_cast<std::uint64_t>(e));
        random_words(draws.state, draws.ordinal, counter >> 2, words);
        const Index skip = static_cast<Index>(counter & 3);
        const Index count = smaller(end - e, (4 * philox_blocks - skip) / per);
        LOCKSTEP_FOR(i, count) out[e - begin + i] = value(words + skip + per * i);
        e += count;
    }
}

template <class T>
void uniform(T* out, Index begin, Index end, const Draws& draws, int digits) {
    draw<element::words_of_number<T>>(
        out, begin, end, draws, [digits](const std::uint32_t* word) __attribute__((always_inline)) {
            return element::uniform_from<T>(word, digits);
        });
}

template <class T>
void normal(T* out, Index begin, Index end, const Draws& draws) {
    draw<element::words_of_number<T>>(
        out, begin, end, draws,
        [](const std::uint32_t* word) __attribute__((always_inline)) { return element::normal_from<T>(word); });
}

template <class T>
void one_of_two(T* out, Index begin, Index end, const Draws& draws, float p, T below, T above) {
    draw<1>(
        out, begin, end, draws, [=](const std::uint32_t* word) __attribute__((always_inline)) {
            return element::one_of_two(*word, p, below, above);
        });
}

/// n elements, with the states whose bits are set in `used`.
template <class T, class Rule, unsigned used>
inline __attribute__((always_inline)) void update_elements(const typename Rule::template Factors<T>& made,
                                                           const T* gradient, T* parameter, T* const* states, Index n) {
    const auto factors = made;
    T* const first = (used & 1u) != 0 ? states[0] : nullptr;
    T* const second = (used & 2u) != 0 ? states[1] : nullptr;
    T* const third = (used & 4u) != 0 ? states[2] : nullptr;
    LOCKSTEP_FOR(i, n) {
        T state[max_states] = {};
        if constexpr ((used & 1u) != 0) state[0] = first[i];
        if constexpr ((used & 2u) != 0) state[1] = second[i];
        if constexpr ((used & 4u) != 0) state[2] = third[i];
        Rule::update(factors, gradient[i], parameter[i], state);
        if constexpr ((used & 1u) != 0) first[i] = state[0];
        if constexpr ((used & 2u) != 0) second[i] = state[1];
        if constexpr ((used & 4u) != 0) third[i] = state[2];
    }
}

template <class T, class Rule, unsigned... variants>
inline __attribute__((always_inline)) void update_variant(std::integer_sequence<unsigned, variants...>, unsigned used,
                                                          const typename Rule::template Factors<T>& factors,
                                                          const T* gradient, T* parameter, T* const* states, Index n) {
    ((used == variants ? update_elements<T, Rule, variants>(factors, gradient, parameter, states, n) : void()), ...);
}

template <class Rule>
inline __attribute__((always_inline)) const typename Rule::Options& options_in(const ParameterRow& row) {
    return reinterpret_cast<const RowWith<typename Rule::Options>&>(row).options;
}

template <class T, class Rule>
void update(const ParameterRow& row, const ParameterNorms& norms, const T* gradient, T* parameter, T* const* states,
            Index n) {
    const auto factors = [&] {
        if constexpr (NormRule<Rule>)
            return Rule::template factors<T>(options_in<Rule>(row), row.updates, norms);
        else
            return Rule::template factors<T>(options_in<Rule>(row), row.updates);
    }();
    update_variant<T, Rule>(typename Rule::Variants(), Rule::template used<T>(factors), factors, gradient, parameter,
                            states, n);
}

template <class T, class Rule>
void measure_update(const ParameterRow& row, const T* gradient, const T* parameter, T* const* states, Index n,
                    double* sums) {
    const auto factors = Rule::template factors<T>(options_in<Rule>(row), row.updates);
    const unsigned used = Rule::template used<T>(factors);
    for (Index first = 0; first < n; first += norm_grain, sums += 2) {
        const Index count = smaller(norm_grain, n - first);
        T direction[norm_grain];
        LOCKSTEP_FOR(i, count) {
            T state[max_states] = {};
            for (unsigned s = 0; s < Rule::states.size(); ++s)
                if ((used >> s & 1u) != 0) state[s] = states[s][first + i];
            direction[i] = Rule::direction(factors, gradient[first + i], parameter[first + i], state);
        }
        sums[0] = element::measure(parameter + first, count, 2);
        sums[1] = element::measure(direction, count, 2);
    }
}

template <class T, class... Rules>
constexpr void add_update_loops(Loops<T>& table, const std::tuple<Rules...>*) {
    const auto measure = []<class Rule>(std::type_identity<Rule>) {
        if constexpr (NormRule<Rule>)
            return measure_update<T, Rule>;
        else
            return nullptr;
    };
    table.update = {update<T, Rules>...};
    table.measure_update = {measure(std::type_identity<Rules>())...};
}

template <class T>
void sum_over_shards(void* const* in, Index distance, int shards, Index first, Index n, T* y) {
    struct Block {
        T value[lanes];
    };
    for (Index i = 0; i < n; i += lanes) {
        const Index count = smaller(lanes, n - i);
        const Block sums = combine_shards<Block>(
            shards,
            [&](int shard) __attribute__((always_inline)) {
                const T* const from = static_cast<const T*>(in[shard * distance]) + first + i;
                Block block;
                if (count == lanes) {
                    for (int j = 0; j < lanes; ++j) block.value[j] = from[j];
                } else {
                    for (int j = 0; j < lanes; ++j) block.value[j] = j < count ? from[j] : T(0);
                }
                return block;
            },
            [](const Block& a, const Block& b) __attribute__((always_inline)) {
                Block block;
                for (int j = 0; j < lanes; ++j) block.value[j] = a.value[j] + b.value[j];
                return block;
            });
        for (Index j = 0; j < count; ++j) y[first + i + j] = sums.value[j];
    }
}

template <class T>
constexpr Loops<T> make_loops() {
    Loops<T> table{};
    add_binary_loops(table, list_of<BinaryFunctions>);
    add_unary_loops(table, list_of<UnaryFunctions>);
    table.affine = affine<T>;
    table.fill = fill<T>;
    table.sum = sum<T>;
    table.squared_error = squared_error<T>;
    table.squared_error_backward = squared_error_backward<T>;
    table.lane_scale = lane_scale<T>;
    table.lane_sum = lane_sum<T>;
    table.lane_deviation = lane_deviation<T>;
    table.lane_normalize = lane_normalize<T>;
    table.lane_normalize_relu = lane_normalize_relu<T>;
    table.lane_backward_sums = lane_backward_sums<T>;
    table.lane_backward_data = lane_backward_data<T>;
    table.largest = largest<T>;
    table.exp_below = exp_below<T>;
    table.product_sum = product_sum<T>;
    table.softmax_gradient = softmax_gradient<T>;
    table.log_softmax_gradient = log_softmax_gradient<T>;
    table.deviation = deviation<T>;
    table.normalize_row = normalize_row<T>;
    table.normalize_row_sums = normalize_row_sums<T>;
    table.normalize_row_backward = normalize_row_backward<T>;
    table.add_weight_gradients = add_weight_gradients<T>;
    table.extremes[0] = extreme<T, false>;
    table.extremes[1] = extreme<T, true>;
    table.argmax = argmax<T>;
    table.argmax_columns = argmax_columns<T>;
    table.add_windows = add_windows<T>;
    table.pool = {pool<T, 1>, pool<T, 8>, pool<T, 16>};
    table.pool_backward = {pool_backward<T, 1>, pool_backward<T, 8>, pool_backward<T, 16>};
    table.interpolate = {interpolate<T, 1>, interpolate<T, 8>, interpolate<T, 16>};
    table.interpolate_backward = {interpolate_backward<T, 1>, interpolate_backward<T, 8>, interpolate_backward<T, 16>};
    table.linear = linear<T>;
    if constexpr (sizeof(T) == 8) table.product = product<T>;
    table.uniform = uniform<T>;
    table.normal = normal<T>;
    table.one_of_two = one_of_two<T>;
    add_update_loops(table, list_of<UpdateRules>);
    table.sum_over_shards = sum_over_shards<T>;
    return table;
}

constinit const Loops<float> floats = make_loops<float>();
constinit const Loops<double> doubles = make_loops<double>();

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS
