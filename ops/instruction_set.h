// Which instructions of the processor the CPU kernels use: part of what results depend on.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Best set of this processor that kernels are written for: "generic", "avx2" or "avx512".
std::string machine_instruction_set();
/// The set that kernels use: that of the machine, limited by LOCKSTEP_CPU_ISA=generic|avx2|avx512. Throws
/// InvalidArgument when that variable holds anything else.
std::string instruction_set();
/// What the processor says of itself (CPUID) as far as it matters for speed: "avx2", "avx512vnni", ...
std::vector<std::string> processor_features();

}  // namespace lockstep
