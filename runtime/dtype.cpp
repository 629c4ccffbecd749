#include "lockstep/runtime/dtype.h"

#include <cmath>

namespace lockstep {

std::size_t size_of(DType dtype) {
    switch (dtype) {
        case DType::f64:
        case DType::i64: return 8;
        case DType::f32:
        case DType::i32: return 4;
        case DType::f16:
        case DType::bf16: return 2;
        case DType::u8:
        case DType::boolean: break;
    }
    return 1;
}

std::string_view name_of(DType dtype) {
    switch (dtype) {
        case DType::f32: return "f32";
        case DType::f64: return "f64";
        case DType::f16: return "f16";
        case DType::bf16: return "bf16";
        case DType::i32: return "i32";
        case DType::i64: return "i64";
        case DType::u8: return "u8";
        case DType::boolean: break;
    }
    return "bool";
}

bool is_floating(DType dtype) {
    return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

DType promote_types(DType a, DType b) {
    if (a == b) return a;
    if (is_floating(a) && is_floating(b)) return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
    if (is_floating(a)) return a;
    if (is_floating(b)) return b;
    for (const DType wide : {DType::i64, DType::i32})
        if (a == wide || b == wide) return wide;
    return DType::u8;
}

Half::Half(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000u;
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {  // NaN: keep it quiet
        bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65520 or more: infinity
        bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // subnormal in binary16: let the float unit round at 2^-24
        const float scaled = std::bit_cast<float>(magnitude) * 16777216.0f;
        bits = static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
    } else {
        const std::uint32_t odd = (magnitude >> 13) & 1u;
        bits = static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
    }
}

Half::operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * (1.0f / 16777216.0f);
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    const std::uint32_t wide = exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23;
    return std::bit_cast<float>(sign | wide | (mantissa << 13));
}

BFloat16::BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
        bits = static_cast<std::uint16_t>((word >> 16) | 0x40u);
    } else {
        bits = static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
}

BFloat16::operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace lockstep
