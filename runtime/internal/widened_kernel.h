// Operations on 16-bit floats by the kernels for f32.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Makes the kernel for the same request in f32; may ask for layouts.
using MakeWide = std::function<std::unique_ptr<Kernel>(KernelRequest&)>;
/// Makes a kernel that converts between dtypes and layouts.
using MakeConversion = std::function<std::unique_ptr<Kernel>(const TensorMeta& from, const TensorMeta& to)>;

/// Converts inputs of f16 and bf16 to f32, runs the kernel for f32 on them and rounds its outputs, to nearest even. An
/// input comes in the layout that it has: one conversion brings it into that which the f32 kernel asks for. Fresh
/// outputs keep the layout of the f32 kernel where there is one alike. What lies in outputs is not read: an operation
/// that changes them in place needs a kernel of its own. Throws InvalidArgument for one that commits: lasting state is
/// f32.
std::unique_ptr<Kernel> widened_kernel(const Operation& operation, KernelRequest& request, const MakeWide& make_wide,
                                       const MakeConversion& make_conversion);

/// Says in a warning, once for f16 and once for bf16, that this processor does not compute in what is asked for.
void tell_of_emulation(const KernelRequest& request);

}  // namespace lockstep
