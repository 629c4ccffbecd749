// Names and types in files of torch.save.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

// The error for an unreadable file of torch.save.

[[noreturn]] inline void refuse_pth(const std::string& file, std::uint64_t offset, const std::string& what) {
    throw DataError(file + ": offset " + std::to_string(offset) + ": " + what +
                    "; not a valid file of torch.save (truncated or corrupt)");
}

struct TorchType {
    std::string_view storage;  ///< torch.FloatStorage; empty for newer types, which have none
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

// Functions and types that a pickle names.

enum class TorchGlobal : std::uint8_t {
    unknown,  ///< its objects are skipped, unread
    ordered_dict,
    dictionary,  ///< created from another one, or empty with a factory of missing values
    set,         ///< created from a list
    size,
    rebuild_tensor,             ///< from a typed storage
    rebuild_tensor_with_dtype,  ///< given as an additional argument
    rebuild_parameter,
    rebuild_parameter_with_state,
    rebuild_from_type,  ///< calls another function, for a tensor with attributes
    rebuild_other,      ///< a tensor without dense elements in one storage
    typed_storage,
    untyped_storage,
    dtype,
    tensor_type  ///< torch.Tensor, Parameter or Buffer
};

struct NamedGlobal {
    TorchGlobal what = TorchGlobal::unknown;
    std::uint32_t type = 0;  ///< the entry of torch_types of a storage or a dtype
};

NamedGlobal find_global(std::string_view module, std::string_view name);

}  // namespace lockstep::internal
