// CUDA kernels that compare and choose, in every dtype, around the edges of chunks, on the stand-in and on GPUs.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Numbers = std::vector<double>;

constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                                DType::i32, DType::i64, DType::u8,  DType::boolean};

/// 0 to 4, or 0 and 1 as bool.
Tensor few_numbers(const Shape& shape, DType dtype, int salt) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] =
            static_cast<float>((i * i + i * 3 + static_cast<std::size_t>(salt)) % (dtype == DType::boolean ? 2 : 5));
    return Tensor::from(values, shape).to(dtype).to(gpu);
}

Numbers values_of(const Tensor& x) { return x.to(Device::host()).to(DType::f64).to_vector<double>(); }

/// Every function against loops over operands that are expanded to `shape`.
void check(const Shape& shape, const Tensor& condition, const Tensor& a, const Tensor& b) {
    const Numbers c = values_of(condition.expand(shape).contiguous()), x = values_of(a.expand(shape).contiguous()),
                  y = values_of(b.expand(shape).contiguous());
    const auto expected = [&](auto f) {
        Numbers all;
        for (std::size_t i = 0; i < c.size(); ++i) all.push_back(f(c[i] != 0, x[i], y[i]));
        return all;
    };
    CHECK(values_of(where(condition, a, b)) == expected([](bool on, double p, double q) { return on ? p : q; }));
    CHECK(values_of(le(a, b)) == expected([](bool, double p, double q) { return p <= q; }));
    CHECK(values_of(ne(a, b)) == expected([](bool, double p, double q) { return p != q; }));
    if (a.dtype() == DType::boolean) return;
    CHECK(values_of(maximum(a, b)) == expected([](bool, double p, double q) { return p > q ? p : q; }));
    CHECK(values_of(minimum(a, b)) == expected([](bool, double p, double q) { return p < q ? p : q; }));
}

}  // namespace

TEST_CASE("comparisons and choices of parts of tensors that begin anywhere and have any length") {
    const NoMistakes end;
    for (const DType dtype : all_dtypes)
        for (const std::int64_t begin : {0, 1, 4})
            for (const std::int64_t count : {1, 7, 16, 37, 96}) {
                INFO(name_of(dtype) << ", " << count << " elements from " << begin);
                const auto part = [&](DType of, int salt) {
                    return few_numbers({begin + count + 3}, of, salt).slice(0, begin, begin + count);
                };
                check({count}, part(DType::boolean, 1), part(dtype, 2), part(dtype, 3));
            }
}

TEST_CASE("comparisons and choices with operands that are repeated along rows and columns") {
    const NoMistakes end;
    for (const DType dtype : all_dtypes)
        for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{5, 32}, {3, 7}}) {
            const Shape whole{rows, columns};
            for (const Shape& shape : {Shape{columns}, Shape{rows, 1}, Shape{}}) {
                INFO(name_of(dtype) << ", " << rows << " x " << columns << " with " << shape.str());
                check(whole, few_numbers(whole, DType::boolean, 1), few_numbers(whole, dtype, 2),
                      few_numbers(shape, dtype, 3));
                check(whole, few_numbers(shape, DType::boolean, 1), few_numbers(shape, dtype, 2),
                      few_numbers(whole, dtype, 3));
            }
        }
}

TEST_CASE("a divisor that is the integer 0 is reported with its row") {
    const NoMistakes end;
    for (const auto& [count, bad] : {std::pair<std::int64_t, std::int64_t>{1, 0}, {9, 4}, {300, 7}, {5000, 4000}}) {
        std::vector<std::int64_t> divisors(static_cast<std::size_t>(count), 3);
        divisors[static_cast<std::size_t>(bad)] = divisors.back() = 0;
        const Tensor a = Tensor::full({count}, 7, DType::i64, gpu);
        CHECK(message_of<InvalidArgument>(
                  [&] { (void)remainder(a, Tensor::from(divisors, {count}).to(gpu)).to_vector<std::int64_t>(); }) ==
              "remainder: the divisor in row " + std::to_string(bad) + " is the integer 0; expected another number");
    }
    CHECK(floor_divide(Tensor::full({3}, 7, DType::i64, gpu), -2).to_vector<std::int64_t>() ==
          std::vector<std::int64_t>(3, -4));
}
