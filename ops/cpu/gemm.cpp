#include "lockstep/ops/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/onednn.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep::cpu {
namespace {

struct Factor {
    char transposed;
    std::int64_t stride;  // between contiguous rows or columns
};

Factor factor_of(std::int64_t rows, std::int64_t columns, const Matrix<float>& matrix) {
    // The stride of a dimension of size 1 is meaningless.
    if (matrix.column == 1 || columns == 1) {
        if (rows == 1 || matrix.row >= columns) return {'N', std::max(rows == 1 ? columns : matrix.row, columns)};
    }
    return {'T', std::max(columns == 1 ? rows : matrix.column, rows)};
}

/// oneDNN generates the code for a kind of product at its first call, as a static object.
void watch_first(const Factor& left, const Factor& right, bool vector) {
    static std::array<std::atomic<bool>, 8> met{};
    const int kind = (left.transposed == 'T' ? 1 : 0) + (right.transposed == 'T' ? 2 : 0) + (vector ? 4 : 0);
    std::atomic<bool>& known = met[static_cast<std::size_t>(kind)];
    if (!known.load(std::memory_order_relaxed) && !known.exchange(true)) process_exit::watch();
}

}  // namespace

bool is_gemm_operand(std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t column) {
    const bool by_rows = (column == 1 || columns == 1) && (rows == 1 || row >= columns);
    const bool by_columns = (row == 1 || rows == 1) && (columns == 1 || column >= rows);
    return by_rows || by_columns;
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix<float>& a, const Matrix<float>& b, float* c,
          bool add) {
    if (m == 0 || n == 0) return;
    if (k == 0) {
        if (!add) std::fill_n(c, m * n, 0.0F);
        return;
    }
    static_cast<void>(onednn::cpu_engine());  // applies LOCKSTEP_CPU_ISA to oneDNN
    // Small products use one thread, by a rule that depends only on their size: oneDNN's choice varies with the shape.
    constexpr std::int64_t multiplications = 16;  // in the time of a simple element
    const onednn::ThreadScope threads(worthwhile_threads(omp_get_max_threads(), m * n * k / multiplications));
    const Factor left = factor_of(m, k, a), right = factor_of(k, n, b);
    const dnnl::status status = dnnl::sgemm(left.transposed, right.transposed, m, n, k, 1.0F, a.data, left.stride,
                                            b.data, right.stride, add ? 1.0F : 0.0F, c, n);
    if (status != dnnl::status::success)
        throw DeviceError("oneDNN's sgemm failed with status " + std::to_string(static_cast<int>(status)) +
                          "; 1 means out of memory");
    watch_first(left, right, m == 1 || n == 1);
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix<double>& a, const Matrix<double>& b, double* c,
          bool add) {
    if (!add) std::fill_n(c, m * n, 0.0);
    // The loops compute several columns at a time: a single one is computed as a row.
    const ProductTerms<double> terms =
        n == 1 ? ProductTerms<double>{b.data, b.column, b.row, a.data, a.column, a.row, 1, m, k}
               : ProductTerms<double>{a.data, a.row, a.column, b.data, b.row, b.column, m, n, k};
    constexpr std::int64_t multiplications = 8, columns = 64;
    for_parts(worthwhile_threads(omp_get_max_threads(), m * n * k / multiplications), terms.n, columns,
              [&](std::int64_t begin, std::int64_t end) { loops<double>().product(terms, c, begin, end); });
}

}  // namespace lockstep::cpu
