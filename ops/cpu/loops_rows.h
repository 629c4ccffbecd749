// Loops of loops.h over rows: softmax, layer normalisation, the largest element, and sums of short windows; see
// loops_kernels.h, which includes this after the loops that it uses.
#pragma once

namespace lockstep::cpu::LOCKSTEP_LOOPS {

template <class T>
void exp_below(const T* x, T most, T* y, Index n) {
    const functor::Exp function;
    if constexpr (by_registers<functor::Exp>) {
#if defined(LOCKSTEP_HAS_SLEEF) && defined(__AVX2__)
        const NumberLanes<T> largest(static_cast<double>(most));
        for_registers<T>(
            n, [&](Index i, Index count) __attribute__((always_inline)) {
                store_lanes(function.value(load_lanes(x + i, count) - largest), y + i, count);
            });
#endif
    } else {
        LOCKSTEP_FOR(i, n) y[i] = function.value(x[i] - most);
    }
}

template <class T>
T largest(const T* x, Index n) {
    T most[lanes];
    for (int j = 0; j < lanes; ++j) most[j] = x[0];
    Index i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int j = 0; j < lanes; ++j) most[j] = most[j] < x[i + j] ? x[i + j] : most[j];
    for (int j = 0; i + j < n; ++j) most[j] = most[j] < x[i + j] ? x[i + j] : most[j];
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) most[j] = most[j] < most[j + half] ? most[j + half] : most[j];
    return most[0];
}

template <class T>
double product_sum(const T* a, const T* b, Index n) {
    double sums[lanes] = {};
    accumulate<T>(sums, n, [=](Index i, int) { return a[i] * b[i]; });
    return fold(sums);
}

template <class T>
void softmax_gradient(const T* dy, const T* y, T total, T* dx, Index n) {
    LOCKSTEP_FOR(i, n) dx[i] = y[i] * (dy[i] - total);
}
template <class T>
void log_softmax_gradient(const T* dy, const T* power, T total, T* dx, Index n) {
    LOCKSTEP_FOR(i, n) dx[i] = dy[i] - power[i] * total;
}

template <class T>
double deviation(const T* x, T mean, Index n) {
    double sums[lanes] = {};
    accumulate<T>(sums, n, [=](Index i, int) { return (x[i] - mean) * (x[i] - mean); });
    return fold(sums);
}

/// Calls map(function from i to the weight of element i); all weights are 1 if `weight` is null.
template <class T, class Map>
inline __attribute__((always_inline)) void with_weights(const T* weight, const Map& map) {
    if (weight != nullptr)
        map([weight](Index i) __attribute__((always_inline)) { return weight[i]; });
    else
        map([](Index) __attribute__((always_inline)) { return T(1); });
}

template <class T>
void normalize_row(const T* x, T mean, T scale, const T* weight, const T* bias, T* y, Index n) {
    with_weights(
        weight, [&](auto weight_of) __attribute__((always_inline)) {
            if (bias != nullptr) {
                LOCKSTEP_FOR(i, n) y[i] = element::normalize(x[i], mean, weight_of(i) * scale, bias[i]);
            } else {
                LOCKSTEP_FOR(i, n) y[i] = element::normalize(x[i], mean, weight_of(i) * scale, T(0));
            }
        });
}

template <class T>
void normalize_row_sums(const T* x, const T* dy, T mean, const T* weight, Index n, double* sums) {
    double of_dy[lanes] = {}, of_products[lanes] = {};
    with_weights(
        weight, [&](auto weight_of) __attribute__((always_inline)) {
            accumulate<T>(of_dy, n, [=](Index i, int) { return dy[i] * weight_of(i); });
            accumulate<T>(of_products, n, [=](Index i, int) { return dy[i] * weight_of(i) * (x[i] - mean); });
        });
    sums[0] = fold(of_dy);
    sums[1] = fold(of_products);
}

template <class T>
void normalize_row_backward(const T* x, const T* dy, const RowGradient<T>& row, const T* weight, T* dx, Index n) {
    with_weights(
        weight, [&](auto weight_of) __attribute__((always_inline)) {
            LOCKSTEP_FOR(i, n)
            dx[i] =
                element::normalize_backward(x[i], dy[i] * weight_of(i), row.mean, row.scale, row.mean_dy, row.slope);
        });
}

template <class T>
void add_weight_gradients(const T* x, const T* dy, T mean, T scale, double* weights, double* biases, Index n) {
    LOCKSTEP_FOR(i, n) {
        weights[i] += static_cast<double>(dy[i] * ((x[i] - mean) * scale));
        biases[i] += static_cast<double>(dy[i]);
    }
}

/// An integer as wide as T, so that vectors of both have as many elements.
template <class T>
using IntegerLike = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

/// The largest or smallest of n >= 1 elements, or a NaN if there is one.
template <class T, bool smallest>
T extreme(const T* x, Index n) {
    const auto better = [](T known, T value) { return (smallest ? value < known : known < value) ? value : known; };
    IntegerLike<T> unordered[lanes] = {};
    T most[lanes];
    for (int j = 0; j < lanes; ++j) most[j] = x[0];
    Index i = 0;
    for (; i + lanes <= n; i += lanes)
        for (int j = 0; j < lanes; ++j) {
            const T value = x[i + j];
            unordered[j] |= value != value;
            most[j] = better(most[j], value);
        }
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) {
            most[j] = better(most[j], most[j + half]);
            unordered[j] |= unordered[j + half];
        }
    T best = most[0];
    IntegerLike<T> any = unordered[0];
    for (; i < n; ++i) {
        any |= x[i] != x[i];
        best = better(best, x[i]);
    }
    return any != 0 ? static_cast<T>(__builtin_nan("")) : best;
}

template <class T>
Index argmax(const T* x, Index n) {
    const T best = extreme<T, false>(x, n);
    Index k = 0;
    if (best != best) {
        while (x[k] == x[k]) ++k;
        return k;
    }
    for (; k + lanes <= n; k += lanes) {
        IntegerLike<T> found = 0;
        for (int j = 0; j < lanes; ++j) found |= x[k + j] == best;
        if (found != 0) break;
    }
    while (x[k] != best) ++k;
    return k;
}

/// For `count` adjacent columns, at most argmax_columns_at_once.
template <class T>
void argmax_columns(const T* x, Index size, Index stride, Index count, std::int64_t* y) {
    T most[argmax_columns_at_once];
    IntegerLike<T> best[argmax_columns_at_once];
    for (Index j = 0; j < count; ++j) {
        most[j] = x[j];
        best[j] = 0;
    }
    for (Index k = 1; k < size; ++k) {
        const T* const row = x + k * stride;
        const auto number = static_cast<IntegerLike<T>>(k);
        LOCKSTEP_FOR(j, count) {
            const T value = row[j], known = most[j];
            const bool better = (value > known) | ((value != value) & (known == known));
            most[j] = better ? value : known;
            best[j] = better ? number : best[j];
        }
    }
    for (Index j = 0; j < count; ++j) y[j] = best[j];
}

template <class T, int run>
inline __attribute__((always_inline)) void add_windows_of(const T* x, T* y, Index n) {
    LOCKSTEP_FOR(i, n) {
        T sum = x[i * run];
        for (int k = 1; k < run; ++k) sum += x[i * run + k];
        y[i] += sum;
    }
}
template <class T>
void add_windows(const T* x, int run, T* y, Index n) {
    switch (run) {
        case 2: return add_windows_of<T, 2>(x, y, n);
        case 3: return add_windows_of<T, 3>(x, y, n);
        case 4: return add_windows_of<T, 4>(x, y, n);
        default:
            for (int k = 0; k < run; ++k) LOCKSTEP_FOR(i, n) y[i] += x[i * run + k];
    }
}

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS
