#include "lockstep/ops/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::cpu {

Isa machine_isa() {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (avx2 && avx512) return Isa::avx512;
    return avx2 ? Isa::avx2 : Isa::generic;
}

std::string_view isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx512: return "avx512";
        case Isa::avx2: return "avx2";
        case Isa::generic: break;
    }
    return "generic";
}

Isa allowed_isa() {
    const char* limit = std::getenv("LOCKSTEP_CPU_ISA");
    if (limit == nullptr) return machine_isa();
    for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512})
        if (isa_name(isa) == limit) return std::min(isa, machine_isa());
    throw InvalidEnvironment("LOCKSTEP_CPU_ISA is '" + std::string(limit) + "'; expected generic, avx2 or avx512");
}

}  // namespace lockstep::cpu
