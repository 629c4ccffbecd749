// Products of f64 matrices, whose tiles and blocks begin and end at all places, against sums in long double.
#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"

using namespace lockstep;

namespace {

std::vector<double> factors_of(std::int64_t count, double first) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(first + static_cast<double>(i));
    return values;
}

/// (rows, columns), in memory as its transpose if `transposed`.
Tensor factor_matrix(const std::vector<double>& values, std::int64_t rows, std::int64_t columns, bool transposed) {
    const Tensor x = Tensor::from(values, {rows, columns});
    return transposed ? x.transpose(0, 1).contiguous().transpose(0, 1) : x;
}

}  // namespace

TEST_CASE("products of f64 matrices are accurate, and have the same bits on any number of threads") {
    struct Sizes {
        std::int64_t m, n, k;
    };
    for (const Sizes& size : {Sizes{1, 1, 300}, {7, 17, 9}, {13, 150, 300}, {9, 1, 20}, {1, 40, 257}, {8, 16, 256}})
        for (const bool left : {false, true})
            for (const bool right : {false, true}) {
                const auto [m, n, k] = size;
                CAPTURE(m, n, k, left, right);
                const std::vector<double> a = factors_of(m * k, 1), b = factors_of(k * n, 2);
                const Tensor x = factor_matrix(a, m, k, left), y = factor_matrix(b, k, n, right);
                const std::vector<double> found = matmul(x, y).to_vector<double>();
                double worst = 0;
                for (std::int64_t i = 0; i < m; ++i)
                    for (std::int64_t j = 0; j < n; ++j) {
                        long double sum = 0;
                        for (std::int64_t l = 0; l < k; ++l)
                            sum += static_cast<long double>(a[static_cast<std::size_t>(i * k + l)]) *
                                   b[static_cast<std::size_t>(l * n + j)];
                        const auto error = found[static_cast<std::size_t>(i * n + j)] - sum;
                        worst = std::max(worst, std::abs(static_cast<double>(error)));
                    }
                CHECK(worst < 1e-14 * static_cast<double>(k));
                const ComputeScope scope({.threads = 3});
                CHECK(matmul(x, y).to_vector<double>() == found);
            }
}
