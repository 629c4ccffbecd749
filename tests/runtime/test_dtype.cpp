// Element types: the 16-bit floats bit by bit, and conversion between all of them through tensors.
#include "lockstep/runtime/dtype.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;

namespace {

constexpr std::array all = {DType::f32, DType::f64, DType::f16, DType::bf16,
                            DType::i32, DType::i64, DType::u8,  DType::boolean};

/// Value of a 16-bit float from its definition.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// Nearest number with `mantissa_bits` bits after the leading one and the given exponent range, ties to even.
double rounded(double value, int exponent_bits, int mantissa_bits) {
    if (value == 0 || !std::isfinite(value)) return value;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = std::max(std::ilogb(value), 1 - bias);
    const double unit = std::ldexp(1.0, exponent - mantissa_bits);
    const double result = std::nearbyint(value / unit) * unit;
    const double largest = std::ldexp(2.0 - std::ldexp(1.0, -mantissa_bits), bias);
    return std::abs(result) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : result;
}

template <class T>
void check_all_patterns(int exponent_bits, int mantissa_bits) {
    for (unsigned pattern = 0; pattern < 65536; ++pattern) {
        T number;
        number.bits = static_cast<std::uint16_t>(pattern);
        const auto wide = static_cast<float>(number);
        const double expected = value_of(number.bits, exponent_bits, mantissa_bits);
        const T back(wide);
        if (std::isnan(expected)) {
            if (!std::isnan(wide) || !std::isnan(static_cast<float>(back))) FAIL("NaN " << pattern);
        } else if (static_cast<double>(wide) != expected || back.bits != number.bits) {
            FAIL("pattern " << pattern << ": " << wide << " for " << expected << ", back " << back.bits);
        }
    }
}

template <class T>
void check_rounding(int exponent_bits, int mantissa_bits) {
    const auto check = [&](float value) {
        const auto found = static_cast<double>(static_cast<float>(T(value)));
        const double expected = rounded(static_cast<double>(value), exponent_bits, mantissa_bits);
        if (std::isnan(value) ? !std::isnan(found) : found != expected || std::signbit(found) != std::signbit(value))
            FAIL("value " << value << " gives " << found << ", not " << expected);
    };
    // Around every number and every midpoint between two numbers, where the rounding direction changes.
    for (unsigned pattern = 0; pattern < 0x7fffu; ++pattern) {
        const double low = value_of(static_cast<std::uint16_t>(pattern), exponent_bits, mantissa_bits);
        const double high = value_of(static_cast<std::uint16_t>(pattern + 1), exponent_bits, mantissa_bits);
        if (!std::isfinite(low) || !std::isfinite(high)) continue;
        for (const double middle : {low, (low + high) / 2}) {
            const auto value = static_cast<float>(middle);
            for (const float near : {value, std::nextafter(value, 1e38f), std::nextafter(value, -1e38f)}) {
                check(near);
                check(-near);
            }
        }
    }
    std::mt19937 random(3);
    for (int i = 0; i < 1000000; ++i) check(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    for (const float value : {65504.0f, 65519.0f, 65520.0f, 65536.0f, 3.4e38f, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::quiet_NaN()}) {
        check(value);
        check(-value);
    }
}

/// PyTorch's result for a number that every dtype here can represent, possibly rounded.
double as(double value, DType dtype) {
    switch (dtype) {
        case DType::f32: return static_cast<double>(static_cast<float>(value));
        case DType::f64: return value;
        case DType::f16: return rounded(value, 5, 10);
        case DType::bf16: return rounded(value, 8, 7);
        case DType::boolean: return value != 0;
        default: return std::trunc(value);
    }
}

}  // namespace

TEST_CASE("sizes and names") {
    const std::array<std::size_t, 8> bytes = {4, 8, 2, 2, 4, 8, 1, 1};
    const std::array<const char*, 8> names = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"};
    for (std::size_t i = 0; i < all.size(); ++i) {
        CHECK(size_of(all[i]) == bytes[i]);
        CHECK(name_of(all[i]) == names[i]);
        CHECK(is_floating(all[i]) == (i < 4));
        visit_dtype(all[i], [&](auto element) { CHECK(dtype_of<decltype(element)> == all[i]); });
    }
}

TEST_CASE("every bit pattern of f16 and bf16 has the right value and survives conversion to f32 and back") {
    check_all_patterns<Half>(5, 10);
    check_all_patterns<BFloat16>(8, 7);
}

TEST_CASE("f16 and bf16 round to nearest, ties to even") {
    check_rounding<Half>(5, 10);
    check_rounding<BFloat16>(8, 7);
}

TEST_CASE("every dtype stores and converts to every other, on host and device") {
    const std::vector<double> values = {0, 1, 2, 3.5, 7.25, 100.0625, 127, 200.7};
    const Shape shape{2, 4};
    for (const Device device : {Device::host(), Device::cpu(1)})
        for (const DType from : all) {
            const Tensor source = Tensor::from(values, shape).to(from).to(device);
            CHECK(source.dtype() == from);
            CHECK(source.device() == device);
            for (const DType to : all) {
                INFO(name_of(from) << " to " << name_of(to) << " on " << device.str());
                const std::vector<double> found = source.to(to).to(DType::f64).to_vector<double>();
                for (std::size_t i = 0; i < values.size(); ++i) CHECK(found[i] == as(as(values[i], from), to));
                // The same through a view that is not contiguous.
                const Tensor turned = source.transpose(0, 1).to(to);
                CHECK(turned.is_contiguous() == (from != to));  // a tensor that has the dtype is returned unchanged
                CHECK(turned.select(0, 1).select(0, 1).item() == as(as(values[5], from), to));
            }
        }
}

TEST_CASE("negative numbers and large integers keep their value if the dtype can hold it") {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64})
        CHECK(Tensor::scalar(-3).to(dtype).item() == -3);
    const std::vector<std::int64_t> large = {std::numeric_limits<std::int64_t>::max(), -5000000000,
                                             std::numeric_limits<std::int64_t>::min()};
    CHECK(Tensor::from(large, {3}, Device::cpu(0)).to_vector<std::int64_t>() == large);
    CHECK(Tensor::from(large, {3}).slice(0, 1, 2).to(DType::f64).item() == -5e9);
}

TEST_CASE("values are read and written as the dtype's C++ type") {
    const std::vector<bool> flags = {true, false, true};
    CHECK(Tensor::from(flags, {3}).dtype() == DType::boolean);
    CHECK(Tensor::from(flags, {3}, Device::cpu(0)).to_vector<bool>() == flags);
    const std::vector<std::uint8_t> bytes = {0, 128, 255};
    CHECK(Tensor::from(bytes, {3}, Device::cpu(0)).to_vector<std::uint8_t>() == bytes);
    const std::vector<std::int32_t> ints = {-1, 0, 2147483647};
    CHECK(Tensor::from(ints, {3}, Device::cpu(1)).to_vector<std::int32_t>() == ints);
    const Tensor halves = Tensor::from(std::vector<Half>{Half(1.5f), Half(-2.0f)}, {2}, Device::cpu(0));
    CHECK(halves.dtype() == DType::f16);
    CHECK(halves.to_vector<Half>()[1].bits == 0xc000);
    CHECK(Tensor::from(std::vector<BFloat16>{BFloat16(1.5f)}, {1}).to_vector<BFloat16>()[0].bits == 0x3fc0);

    const std::string text = message_of<InvalidArgument>([&] { halves.to_vector<float>(); });
    CHECK(contains(text, "f16"));
    CHECK(contains(text, "f32"));
    CHECK(contains(text, ".to(dtype)"));
}
