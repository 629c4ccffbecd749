// Format constants for readers and writers of safetensors headers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/runtime/dtype.h"

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace lockstep::internal::safetensors_format {

inline constexpr std::uint64_t prefix_bytes = 8;
inline constexpr std::uint64_t longest_header = 100'000'000;  // the limit of the reference implementation
inline constexpr const char* metadata_key = "__metadata__";

struct TypeName {
    DType dtype;
    std::string_view name;
};
inline constexpr std::array<TypeName, 8> type_names = {{{DType::f32, "F32"},
                                                        {DType::f64, "F64"},
                                                        {DType::f16, "F16"},
                                                        {DType::bf16, "BF16"},
                                                        {DType::i32, "I32"},
                                                        {DType::i64, "I64"},
                                                        {DType::u8, "U8"},
                                                        {DType::boolean, "BOOL"}}};

}  // namespace lockstep::internal::safetensors_format
