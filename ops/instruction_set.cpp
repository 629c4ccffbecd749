#include "lockstep/ops/instruction_set.h"

#include "lockstep/ops/cpu/isa.h"

namespace lockstep {

std::string machine_instruction_set() { return std::string(cpu::isa_name(cpu::machine_isa())); }

std::string instruction_set() { return std::string(cpu::isa_name(cpu::allowed_isa())); }

std::vector<std::string> processor_features() {
    __builtin_cpu_init();
    std::vector<std::string> features;
    // The compiler needs each name as a literal.
    const auto note = [&](bool there, const char* name) {
        if (there) features.emplace_back(name);
    };
    note(__builtin_cpu_supports("sse4.2"), "sse4.2");
    note(__builtin_cpu_supports("avx"), "avx");
    note(__builtin_cpu_supports("fma"), "fma");
    note(__builtin_cpu_supports("avx2"), "avx2");
    note(__builtin_cpu_supports("avx512f"), "avx512f");
    note(__builtin_cpu_supports("avx512bw"), "avx512bw");
    note(__builtin_cpu_supports("avx512dq"), "avx512dq");
    note(__builtin_cpu_supports("avx512vl"), "avx512vl");
    note(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
    note(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
    return features;
}

}  // namespace lockstep
