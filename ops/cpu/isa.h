// Instruction set of the library's own vector kernels on this machine.
#pragma once

#include <string_view>

namespace lockstep::cpu {

/// Ordered: each one includes its predecessors. `generic` means that only oneDNN's kernels are used.
enum class Isa { generic, avx2, avx512 };

/// Best instruction set of this processor (CPUID), regardless of the environment.
Isa machine_isa();

/// Best instruction set allowed: machine_isa(), limited by LOCKSTEP_CPU_ISA=generic|avx2|avx512. Throws InvalidArgument
/// if that variable has another value. oneDNN has the same limit, see onednn::cpu_engine().
Isa allowed_isa();

std::string_view isa_name(Isa isa);

/// Floats in one vector register of the kernels for `isa`, and therefore channels in one block of nChw{V}c: 8 or 16.
constexpr int isa_vector_width(Isa isa) { return isa == Isa::avx512 ? 16 : 8; }

}  // namespace lockstep::cpu
