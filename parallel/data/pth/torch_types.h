// PyTorch's element types, under the names that files of torch.save have for them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "lockstep/runtime/dtype.h"

namespace lockstep::internal {

struct TorchType {
    std::string_view storage;  ///< torch.FloatStorage; empty for types that came later and have none
    std::string_view dtype;    ///< torch.float32
    std::size_t bytes;
    std::optional<DType> ours = std::nullopt;
};

inline constexpr std::array<TorchType, 21> torch_types = {{{"FloatStorage", "float32", 4, DType::f32},
                                                           {"DoubleStorage", "float64", 8, DType::f64},
                                                           {"HalfStorage", "float16", 2, DType::f16},
                                                           {"BFloat16Storage", "bfloat16", 2, DType::bf16},
                                                           {"IntStorage", "int32", 4, DType::i32},
                                                           {"LongStorage", "int64", 8, DType::i64},
                                                           {"ByteStorage", "uint8", 1, DType::u8},
                                                           {"BoolStorage", "bool", 1, DType::boolean},
                                                           {"ShortStorage", "int16", 2},
                                                           {"CharStorage", "int8", 1},
                                                           {"ComplexFloatStorage", "complex64", 8},
                                                           {"ComplexDoubleStorage", "complex128", 16},
                                                           {"", "uint16", 2},
                                                           {"", "uint32", 4},
                                                           {"", "uint64", 8},
                                                           {"", "float8_e4m3fn", 1},
                                                           {"", "float8_e4m3fnuz", 1},
                                                           {"", "float8_e5m2", 1},
                                                           {"", "float8_e5m2fnuz", 1},
                                                           {"", "float8_e8m0fnu", 1},
                                                           {"", "float4_e2m1fn_x2", 1}}};

}  // namespace lockstep::internal
