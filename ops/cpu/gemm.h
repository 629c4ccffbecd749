// Matrix products of row-major or transposed matrices.
#pragma once

#include <cstdint>

namespace lockstep::cpu {

/// A matrix in memory: element (i, j) at data[i * row + j * column].
template <class T>
struct Matrix {
    const T* data;
    std::int64_t row, column;
};

/// Whether gemm supports a (rows, columns) matrix with these strides: rows or columns are contiguous.
bool is_gemm_operand(std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t column);

/// c (m, n), row-major, = a (m, k) * b (k, n), plus the previous c if `add`. f32 by oneDNN, f64 by
/// loops whose bits do not depend on the number of threads; on the OpenMP threads of the caller.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix<float>& a, const Matrix<float>& b, float* c,
          bool add = false);
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix<double>& a, const Matrix<double>& b, double* c,
          bool add = false);

}  // namespace lockstep::cpu
