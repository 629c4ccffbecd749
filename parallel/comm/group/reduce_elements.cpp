#include "lockstep/parallel/comm/group/reduce_elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/float16_rows.h"

namespace lockstep {

namespace {

/// Type in which an element is computed.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float,
                                std::conditional_t<std::is_same_v<T, std::uint8_t>, std::uint32_t, T>>;

template <class T>
T wrapping(T a, T b, bool product) {
    if constexpr (std::is_integral_v<T>) {
        using Unsigned = std::make_unsigned_t<T>;
        const auto x = static_cast<Unsigned>(a), y = static_cast<Unsigned>(b);
        return static_cast<T>(product ? x * y : x + y);
    } else {
        return product ? a * b : a + b;
    }
}

template <class T>
T extreme(T a, T b, bool smallest) {
    if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(a) || std::isnan(b)) return a + b;
    return smallest ? std::min(a, b) : std::max(a, b);
}

template <class T, class Combine>
void combine(void* out, const void* a, const void* b, std::size_t count, Combine op) {
    auto* to = static_cast<T*>(out);
    const auto* x = static_cast<const T*>(a);
    const auto* y = static_cast<const T*>(b);
    for (std::size_t i = 0; i < count; ++i)
        to[i] = static_cast<T>(op(static_cast<Wide<T>>(x[i]), static_cast<Wide<T>>(y[i])));
}

template <class T>
void reduce(ReduceOp op, void* out, const void* a, const void* b, std::size_t count) {
    using W = Wide<T>;
    switch (op) {
        case ReduceOp::sum: combine<T>(out, a, b, count, [](W x, W y) { return wrapping(x, y, false); }); break;
        case ReduceOp::product: combine<T>(out, a, b, count, [](W x, W y) { return wrapping(x, y, true); }); break;
        case ReduceOp::min: combine<T>(out, a, b, count, [](W x, W y) { return extreme(x, y, true); }); break;
        case ReduceOp::max: combine<T>(out, a, b, count, [](W x, W y) { return extreme(x, y, false); }); break;
        case ReduceOp::mean: throw InvalidArgument("reduce_elements: a mean is a sum that is divided once");
    }
}

/// 16-bit floats, in blocks that stay in the first-level cache, because compilers vectorize loops that only convert.
template <class T>
void reduce_in_f32(ReduceOp op, void* out, const void* a, const void* b, std::size_t count) {
    constexpr std::size_t block = 1024;
    std::array<float, block> x, y;
    for (std::size_t at = 0; at < count; at += block) {
        const std::size_t n = std::min(block, count - at);
        const auto length = static_cast<std::ptrdiff_t>(n);
        float16::upcast(static_cast<const T*>(a) + at, x.data(), length);
        float16::upcast(static_cast<const T*>(b) + at, y.data(), length);
        reduce<float>(op, x.data(), x.data(), y.data(), n);
        float16::downcast(x.data(), static_cast<T*>(out) + at, length);
    }
}

void reduce_booleans(ReduceOp op, void* out, const void* a, const void* b, std::size_t count) {
    const bool either = op == ReduceOp::sum || op == ReduceOp::max;
    combine<bool>(out, a, b, count, [either](bool x, bool y) { return either ? x || y : x && y; });
}

}  // namespace

void reduce_elements(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::size_t count) {
    if (dtype == DType::boolean) return reduce_booleans(op, out, a, b, count);
    visit_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
            reduce_in_f32<T>(op, out, a, b, count);
        else if constexpr (!std::is_same_v<T, bool>)
            reduce<T>(op, out, a, b, count);
    });
}

void divide_elements(DType dtype, void* data, std::size_t count, int divisor) {
    visit_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        if constexpr (std::is_same_v<T, bool>) {
            throw InvalidArgument("booleans have no mean; expected sum (\"or\") or product (\"and\")");
        } else {
            using W = Wide<T>;
            auto* values = static_cast<T*>(data);
            for (std::size_t i = 0; i < count; ++i)
                values[i] = static_cast<T>(static_cast<W>(values[i]) / static_cast<W>(divisor));
        }
    });
}

}  // namespace lockstep
