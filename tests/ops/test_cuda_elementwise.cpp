// Elementwise CUDA kernels, copies and transposes around the edges of chunks and tiles, on the stand-in and on GPUs.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Numbers = std::vector<double>;

/// Numbers in [-3, 3] that are rounded to the dtype.
Tensor numbers(const Shape& shape, DType dtype, int salt) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = 3 * std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(salt) * 11 + 1));
    return Tensor::from(values, shape).to(gpu).to(dtype);
}

Numbers values_of(const Tensor& x) { return x.to(Device::host()).to(DType::f64).to_vector<double>(); }

/// Largest relative error of one rounding to the dtype, with room for functions that are not rounded correctly.
double rounding(DType dtype) {
    switch (dtype) {
        case DType::f64: return 1e-14;
        case DType::f16: return 0x1p-10;
        case DType::bf16: return 0x1p-7;
        default: return 1e-6;
    }
}

void require_near(const Tensor& y, const Numbers& expected) {
    const Numbers found = values_of(y);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("element " << i);
        REQUIRE(std::abs(found[i] - expected[i]) <= rounding(y.dtype()) * std::max(1e-3, std::abs(expected[i])));
    }
}

/// Elements [begin, begin + count) of a longer tensor, which need not begin at a multiple of 16 bytes.
Tensor part(DType dtype, std::int64_t begin, std::int64_t count, int salt) {
    return numbers({begin + count + 3}, dtype, salt).slice(0, begin, begin + count);
}

constexpr DType floats_of_all_sizes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

}  // namespace

TEST_CASE("division by a known number is exact for all numbers below 2^31") {
    constexpr std::uint32_t limit = std::uint32_t{1} << 31;
    const auto check = [](std::uint32_t divisor) {
        const cuda::Divisor by(divisor);
        const auto one = [&](std::uint64_t dividend) {
            if (dividend >= limit) return;
            const auto n = static_cast<std::uint32_t>(dividend);
            if (by.quotient(n) != n / divisor) FAIL(n << " / " << divisor);
        };
        for (std::uint32_t n = 0; n < 70; ++n) one(n);
        for (std::uint32_t n = 1; n < 70; ++n) one(limit - n);
        // Quotients change at multiples of the divisor.
        const std::uint32_t most = (limit - 1) / divisor, step = most / 61 + 1;
        for (std::uint64_t multiple = most; multiple > 0; multiple -= std::min<std::uint64_t>(multiple, step))
            for (int around = -1; around <= 1; ++around) one(multiple * divisor + static_cast<std::uint64_t>(around));
    };
    for (std::uint32_t divisor = 1; divisor < 3000; ++divisor) check(divisor);
    for (std::uint32_t power = 2; power < limit; power *= 2)
        for (const std::uint32_t divisor : {power - 1, power, power + 1, power / 3 * 2 + 1}) check(divisor);
    std::uint32_t random = 12345;
    for (int i = 0; i < 3000; ++i) {
        random = random * 1664525 + 1013904223;
        check((random >> 1) % (limit - 1) + 1);
    }
    check(limit - 1);
}

TEST_CASE("functions of parts of tensors that begin anywhere and have any length") {
    const NoMistakes end;
    const NoGrad no_grad;
    for (const DType dtype : floats_of_all_sizes)
        for (const std::int64_t begin : {0, 1, 2, 4, 8})
            for (const std::int64_t count : {1, 3, 4, 7, 8, 9, 16, 31, 257}) {
                INFO(name_of(dtype) << ", " << count << " elements from " << begin);
                const Tensor a = part(dtype, begin, count, 1), b = part(dtype, begin, count, 2);
                const Numbers av = values_of(a), bv = values_of(b);
                Numbers sum, product, rectified, gradient, scaled, sigmoids;
                for (std::size_t i = 0; i < av.size(); ++i) {
                    sum.push_back(av[i] + bv[i]);
                    product.push_back(av[i] * bv[i]);
                    rectified.push_back(std::max(av[i], 0.0));
                    gradient.push_back(av[i] > 0 ? bv[i] : 0);
                    scaled.push_back(av[i] * 0.75);
                    sigmoids.push_back(1 / (1 + std::exp(-av[i])));
                }
                const TensorMeta fresh = TensorMeta::contiguous(dtype, {count});
                require_near(a * b, product);
                require_near(apply_one(Accumulate{}, {a, b}, fresh), sum);
                require_near(relu(a), rectified);
                require_near(sigmoid(a), sigmoids);
                require_near(apply_one(UnaryBackward<functor::Relu>{}, {b, a}, fresh), gradient);
                require_near(a * 0.75, scaled);
            }
}

TEST_CASE("operands that are repeated along rows and columns") {
    const NoMistakes end;
    const NoGrad no_grad;
    for (const DType dtype : floats_of_all_sizes)
        for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{5, 32}, {3, 7}, {1, 16}, {40, 24}}) {
            INFO(name_of(dtype) << ", " << rows << " x " << columns);
            const Tensor a = numbers({rows, columns}, dtype, 1);
            for (const Shape& shape : {Shape{columns}, Shape{rows, 1}, Shape{}}) {
                const Tensor b = numbers(shape, dtype, 2);
                const Numbers av = values_of(a), bv = values_of(b);
                Numbers expected;
                for (std::int64_t i = 0; i < rows * columns; ++i) {
                    const std::int64_t of_b = shape.empty() ? 0 : shape.dims() == 2 ? i / columns : i % columns;
                    expected.push_back(av[static_cast<std::size_t>(i)] - bv[static_cast<std::size_t>(of_b)]);
                }
                require_near(a - b, expected);
            }
        }
}

TEST_CASE("16-bit kernels of elementwise operations need no conversions") {
    // A kernel between conversions keeps the converted operands in scratch memory.
    for (const DType dtype : {DType::f16, DType::bf16}) {
        KernelRequest request;
        request.device = gpu;
        const TensorMeta x = TensorMeta::contiguous(dtype, {64});
        const auto scratch = [&](const auto& operation, std::size_t inputs) {
            request.in.assign(inputs, x);
            request.out = {x};
            return KernelTable::of(DeviceKind::cuda).make(*make_operation(operation), request)->scratch_bytes();
        };
        CHECK(scratch(Binary<functor::Add>{}, 2) == 0);
        CHECK(scratch(Binary<functor::Div>{}, 2) == 0);
        CHECK(scratch(Accumulate{}, 2) == 0);
        CHECK(scratch(Unary<functor::Relu>{}, 1) == 0);
        CHECK(scratch(Unary<functor::Gelu>{}, 1) == 0);
        CHECK(scratch(UnaryBackward<functor::Relu>{}, 2) == 0);
        CHECK(scratch(UnaryBackward<functor::Neg>{}, 1) == 0);
        CHECK(scratch(Affine{2, 1}, 1) == 0);
    }
}

TEST_CASE("GELU in 16 bits has the rounding error of its result, and little more, also far from 0") {
    const NoGrad no_grad;
    const NoMistakes end;
    std::vector<float> points;
    for (int i = -768; i <= 768; ++i) points.push_back(static_cast<float>(i) / 64);
    const auto count = static_cast<std::int64_t>(points.size());
    for (const DType dtype : {DType::f16, DType::bf16}) {
        const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8, least = dtype == DType::f16 ? 0x1p-25 : 0x1p-134;
        const Tensor x = Tensor::from(points, {count}).to(gpu).to(dtype), one = Tensor::ones({count}).to(gpu).to(dtype);
        const Numbers found = values_of(gelu(x));
        const Numbers gradients =
            values_of(apply_one(UnaryBackward<functor::Gelu>{}, {one, x}, TensorMeta::contiguous(dtype, {count})));
        const Numbers at = values_of(x);
        for (std::size_t i = 0; i < at.size(); ++i) {
            const double normal = 0.5 * std::erfc(-at[i] * M_SQRT1_2);
            const double slope = at[i] * std::exp(-0.5 * at[i] * at[i]) * 0.5 * M_2_SQRTPI * M_SQRT1_2;
            INFO(name_of(dtype) << ", x " << at[i]);
            REQUIRE(std::abs(found[i] - at[i] * normal) <= 1.1 * unit * std::abs(at[i] * normal) + least);
            const double most = 1.01 * unit * std::abs(normal + slope) + 0x1p-15 * (normal + std::abs(slope));
            REQUIRE(std::abs(gradients[i] - (normal + slope)) <= most + least);
        }
    }
}

TEST_CASE("conversions of parts of tensors, and the 16-bit numbers they make") {
    const NoMistakes end;
    constexpr DType all[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                             DType::i32, DType::i64, DType::u8,  DType::boolean};
    for (const DType from : all)
        for (const DType to : all)
            for (const std::int64_t begin : {0, 1, 4})
                for (const std::int64_t count : {2, 16, 37}) {
                    INFO(name_of(from) << " to " << name_of(to) << ", " << count << " elements from " << begin);
                    std::vector<float> values;
                    for (std::int64_t i = 0; i < begin + count; ++i) values.push_back(static_cast<float>(i % 5));
                    const Tensor x =
                        Tensor::from(values, {begin + count}).to(from).to(gpu).slice(0, begin, begin + count);
                    const Numbers found = values_of(x.to(to));
                    for (std::int64_t i = 0; i < count; ++i) {
                        const bool flag = from == DType::boolean || to == DType::boolean;
                        const auto value = static_cast<double>((begin + i) % 5);
                        REQUIRE(found[static_cast<std::size_t>(i)] == (flag ? (value != 0 ? 1 : 0) : value));
                    }
                }
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> edges{0.0f,     -0.0f,      1.0f,      1.00048828125f, 1.00146484375f,
                                   65519.0f, 65520.0f,   -1e30f,    infinity,       -infinity,
                                   0x1p-24f, 0x1.8p-25f, 0x1p-25f,  0x1p-14f,       0x1.ffcp-15f,
                                   3e-39f,   0x1.01p0f,  0x1.03p0f, 3.4e38f,        0.1f};
    for (const DType dtype : {DType::f16, DType::bf16}) {
        const Tensor x = Tensor::from(edges, {static_cast<std::int64_t>(edges.size())});
        CHECK(values_of(x.to(gpu).to(dtype)) == values_of(x.to(dtype)));
        const Tensor nan = Tensor::from(std::vector<float>{std::numeric_limits<float>::quiet_NaN()}, {1});
        CHECK(std::isnan(values_of(nan.to(gpu).to(dtype))[0]));
    }
}

TEST_CASE("fills and copies of parts of tensors change nothing else") {
    const NoMistakes end;
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8})
        for (const std::int64_t begin : {0, 1, 8, 16})
            for (const std::int64_t count : {1, 15, 16, 40}) {
                INFO(name_of(dtype) << ", " << count << " elements from " << begin);
                const Tensor whole = Tensor::full({begin + count + 9}, 7, dtype, gpu);
                const Tensor some = whole.slice(0, begin, begin + count);
                apply_one(Fill{3}, {}, some);
                Numbers expected(static_cast<std::size_t>(begin + count + 9), 7);
                for (std::int64_t i = begin; i < begin + count; ++i) expected[static_cast<std::size_t>(i)] = 3;
                CHECK(values_of(whole) == expected);
                const Tensor fresh = Tensor::full({count}, 5, dtype, gpu);
                apply_one(Reorder{}, {fresh}, some);
                for (std::int64_t i = begin; i < begin + count; ++i) expected[static_cast<std::size_t>(i)] = 5;
                CHECK(values_of(whole) == expected);
            }
}

TEST_CASE("pieces of tensors are joined and taken apart, in chunks of rows and one by one") {
    const NoMistakes end;
    // More pieces than one launch copies; rows of whole chunks, and others.
    const std::vector<std::int64_t> even(11, 16), odd{16, 3, 48, 16, 1};
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8})
        for (const auto& sizes : {even, odd}) {
            INFO(name_of(dtype) << ", " << sizes.size() << " pieces");
            std::int64_t columns = 0;
            for (const std::int64_t size : sizes) columns += size;
            std::vector<float> values(static_cast<std::size_t>(3 * columns));
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 251);
            const Tensor whole = Tensor::from(values, {3, columns}).to(dtype).to(gpu);
            std::vector<Output> outputs;
            for (const std::int64_t size : sizes) outputs.emplace_back(TensorMeta::contiguous(dtype, {3, size}));
            const std::vector<Tensor> pieces = apply(make_operation(Split{1, sizes}), {whole}, outputs);
            std::int64_t begin = 0;
            for (std::size_t p = 0; p < sizes.size(); ++p) {
                const Tensor piece = whole.slice(1, begin, begin + sizes[p]);
                CHECK(values_of(pieces[p]) == values_of(piece.contiguous()));
                const Numbers found = values_of(pieces[p]);
                for (std::int64_t i = 0; i < 3 * sizes[p]; ++i) {
                    const std::int64_t at = i / sizes[p] * columns + begin + i % sizes[p];
                    REQUIRE(found[static_cast<std::size_t>(i)] ==
                            static_cast<double>(values[static_cast<std::size_t>(at)]));
                }
                begin += sizes[p];
            }
            CHECK(values_of(apply_one(Cat{1}, pieces, whole.impl()->meta)) == values_of(whole));
        }
}

TEST_CASE("transposes around the edges of tiles, in batches, for elements of all sizes") {
    const NoMistakes end;
    const Shape shapes[] = {{1, 8, 1, 8},   {2, 31, 3, 11}, {1, 32, 4, 8},  {3, 33, 5, 13}, {2, 64, 1, 65},
                            {1, 100, 9, 7}, {2, 3, 20, 20}, {2, 66, 5, 26}, {1, 130, 8, 8}};
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8})
        for (const Shape& shape : shapes) {
            const std::int64_t c = shape[1], h = shape[2], w = shape[3];
            INFO(name_of(dtype) << ", " << shape.str());
            std::vector<float> values(static_cast<std::size_t>(shape.numel()));
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 251);
            const Tensor x = Tensor::from(values, shape).to(dtype).to(gpu);
            const Tensor last =
                apply_one(Reorder{}, {permute(x, {0, 2, 3, 1})}, TensorMeta::contiguous(dtype, {shape[0], h, w, c}));
            const Numbers found = values_of(last);
            for (std::int64_t i = 0; i < shape.numel(); ++i) {
                const std::int64_t image = i / (c * h * w), pixel = i / c % (h * w), channel = i % c;
                const auto of_x = static_cast<std::size_t>((image * c + channel) * h * w + pixel);
                REQUIRE(found[static_cast<std::size_t>(i)] == static_cast<double>(values[of_x]));
            }
            const Tensor back =
                apply_one(Reorder{}, {permute(last, {0, 3, 1, 2})}, TensorMeta::contiguous(dtype, shape));
            CHECK(values_of(back) == values_of(x));
        }
}
