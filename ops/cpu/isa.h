// Which instruction set the library's own vector kernels use on this machine.
#pragma once

#include <string_view>

namespace lockstep::cpu {

/// Ordered: each one includes those before it. `generic` means that only oneDNN's kernels are used.
enum class Isa { generic, avx2, avx512 };

/// Best instruction set of this processor (CPUID), whatever the environment says.
Isa machine_isa();

/// Best instruction set allowed: machine_isa(), limited by LOCKSTEP_CPU_ISA=generic|avx2|avx512.
/// Throws InvalidArgument when that variable holds anything else. oneDNN is limited alike, see onednn::cpu_engine().
Isa allowed_isa();

std::string_view isa_name(Isa isa);

/// Floats in one vector register of the kernels for `isa`, and so the channels in one block of nChw{V}c: 8 or 16.
constexpr int isa_vector_width(Isa isa) { return isa == Isa::avx512 ? 16 : 8; }

}  // namespace lockstep::cpu
