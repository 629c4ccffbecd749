// Loops of loops.h for matrix products of f64; see loops_kernels.h. Every element is a sum in the order of k, so that
// neither tiles nor threads affect its bits.
#pragma once

#include "lockstep/ops/cpu/loops_linear.h"

namespace lockstep::cpu::LOCKSTEP_LOOPS {

#if defined(__AVX512F__)
constexpr int product_rows = 8;
#else
constexpr int product_rows = 6;  // with two registers each; a processor has 16
#endif
constexpr Index product_depth = 256;  // rows of b that stay in the first cache

/// Two registers.
template <class T>
constexpr int product_columns = static_cast<int>(2 * larger(16, register_bytes) / static_cast<Index>(sizeof(T)));

/// c (rows, columns) += a (rows, depth) * b (depth, columns), whose rows are `b_row` apart.
template <class T, int rows>
inline __attribute__((always_inline)) void product_tile(const T* a, Index a_row, Index a_column, const T* b,
                                                        Index b_row, Index depth, T* c, Index c_row) {
    constexpr int half = product_columns<T> / 2;
    using Values = typename Pack<T, half>::Values;
    Values left[rows], right[rows];
    for (int r = 0; r < rows; ++r) {
        left[r] = read<Values>(c + r * c_row);
        right[r] = read<Values>(c + r * c_row + half);
    }
    for (Index l = 0; l < depth; ++l) {
        const Values first = read<Values>(b + l * b_row), second = read<Values>(b + l * b_row + half);
        for (int r = 0; r < rows; ++r) {
            const Values factor = a[r * a_row + l * a_column] - Values{};
            left[r] += factor * first;
            right[r] += factor * second;
        }
    }
    for (int r = 0; r < rows; ++r) {
        write(c + r * c_row, left[r]);
        write(c + r * c_row + half, right[r]);
    }
}

/// The same for any number of rows.
template <class T>
void product_panel(const T* a, Index a_row, Index a_column, const T* b, Index b_row, Index depth, T* c, Index c_row,
                   Index rows) {
    Index i = 0;
    for (; i + product_rows <= rows; i += product_rows)
        product_tile<T, product_rows>(a + i * a_row, a_row, a_column, b, b_row, depth, c + i * c_row, c_row);
    for (; i < rows; ++i) product_tile<T, 1>(a + i * a_row, a_row, a_column, b, b_row, depth, c + i * c_row, c_row);
}

template <class T>
void product(const ProductTerms<T>& terms, T* c, Index begin, Index end) {
    constexpr int columns = product_columns<T>;
    const auto [a, a_row, a_column, b, b_row, b_column, m, n, k] = terms;
    T packed[product_depth * columns];
    for (Index l = 0; l < k; l += product_depth) {
        const Index depth = smaller(product_depth, k - l);
        for (Index j = begin; j < end; j += columns) {
            const Index count = smaller(columns, end - j);
            const T *from = b + l * b_row + j * b_column, *panel = packed;
            Index panel_row = columns;
            if (b_column == 1 && count == columns && m <= product_rows) {  // a copy would not pay off
                panel = from;
                panel_row = b_row;
            } else if (b_column == 1) {
                for (Index d = 0; d < depth; ++d)
                    for (Index i = 0; i < columns; ++i)
                        packed[d * columns + i] = i < count ? from[d * b_row + i] : T(0);
            } else {
                for (Index i = 0; i < columns; ++i)
                    for (Index d = 0; d < depth; ++d)
                        packed[d * columns + i] = i < count ? from[d * b_row + i * b_column] : T(0);
            }
            const T* const rows = a + l * a_column;
            if (count == columns) {
                product_panel(rows, a_row, a_column, panel, panel_row, depth, c + j, n, m);
                continue;
            }
            for (Index i = 0; i < m; ++i) {
                T whole[columns] = {};
                for (Index e = 0; e < count; ++e) whole[e] = c[i * n + j + e];
                product_tile<T, 1>(rows + i * a_row, a_row, a_column, panel, panel_row, depth, whole, columns);
                for (Index e = 0; e < count; ++e) c[i * n + j + e] = whole[e];
            }
        }
    }
}

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS
