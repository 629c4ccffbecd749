// Element types and the two 16-bit floats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Element type of a tensor.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8, boolean };

/// Bytes of one element.
std::size_t size_of(DType dtype);
/// PyTorch's short names: "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool".
std::string_view name_of(DType dtype);
bool is_floating(DType dtype);
/// The smallest dtype that has the numbers of both (torch.promote_types): bool, u8, i32, i64, floats; f32 for f16 and
/// bf16.
DType promote_types(DType a, DType b);
/// Whether `dtype` is one of the two 16-bit floats.
constexpr bool is_half_type(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

/// IEEE binary16, round to nearest even on conversion.
struct Half {
    std::uint16_t bits = 0;
    Half() = default;
    explicit Half(float value);
    explicit operator float() const;
};

/// The upper half of a binary32, round to nearest even on conversion; NaN stays NaN.
struct BFloat16 {
    std::uint16_t bits = 0;
    BFloat16() = default;
    explicit BFloat16(float value);
    explicit operator float() const;
};

/// Whether a C++ type is the element type of a dtype, and of which.
template <class T>
inline constexpr bool has_dtype = false;
template <class T>
inline constexpr DType dtype_of = DType::f32;

#define LOCKSTEP_DTYPE(type, value)               \
    template <>                                   \
    inline constexpr bool has_dtype<type> = true; \
    template <>                                   \
    inline constexpr DType dtype_of<type> = DType::value;
LOCKSTEP_DTYPE(float, f32)
LOCKSTEP_DTYPE(double, f64)
LOCKSTEP_DTYPE(Half, f16)
LOCKSTEP_DTYPE(BFloat16, bf16)
LOCKSTEP_DTYPE(std::int32_t, i32)
LOCKSTEP_DTYPE(std::int64_t, i64)
LOCKSTEP_DTYPE(std::uint8_t, u8)
LOCKSTEP_DTYPE(bool, boolean)
#undef LOCKSTEP_DTYPE

/// Calls `visit` with a value-initialised element of the C++ type of `dtype`.
template <class Visit>
decltype(auto) visit_dtype(DType dtype, Visit&& visit) {
    switch (dtype) {
        case DType::f64: return visit(double{});
        case DType::f16: return visit(Half{});
        case DType::bf16: return visit(BFloat16{});
        case DType::i32: return visit(std::int32_t{});
        case DType::i64: return visit(std::int64_t{});
        case DType::u8: return visit(std::uint8_t{});
        case DType::boolean: return visit(bool{});
        case DType::f32: break;
    }
    return visit(float{});
}

}  // namespace lockstep
