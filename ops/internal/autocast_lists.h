// Which functions compute in which dtype under Autocast.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// What `function` converts its floating tensors of f32, f16 and bf16 to in the scope here; nothing where it takes them
/// as they are. The lists are PyTorch's "Autocast Op Reference", those for CUDA and for the CPU made one: docs/mixed-
/// precision.md says where they differ.
std::optional<DType> autocast_dtype(std::string_view function, const std::vector<Tensor>& tensors);

/// Whether Autocast converts tensors of `dtype`.
constexpr bool autocast_converts(DType dtype) { return dtype == DType::f32 || is_short_float(dtype); }

}  // namespace lockstep
