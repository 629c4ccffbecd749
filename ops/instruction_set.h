// Instruction set that the CPU kernels use: results depend on it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Best set of this processor that has kernels: "generic", "avx2" or "avx512".
std::string machine_instruction_set();
/// The set that kernels use: that of the machine, limited by LOCKSTEP_CPU_ISA=generic|avx2|avx512. Throws
/// InvalidArgument if that variable holds anything else.
std::string instruction_set();
/// Processor features (CPUID) that affect speed: "avx2", "avx512vnni", ...
std::vector<std::string> processor_features();

}  // namespace lockstep
