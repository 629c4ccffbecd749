#include "lockstep/ops/cpu/onednn.h"

#include <fmt/format.h>
#include <omp.h>

#include "lockstep/ops/cpu/isa.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/threads.h"

namespace lockstep::cpu::onednn {

const dnnl::engine& cpu_engine() {
    static const dnnl::engine engine = [] {
        const Isa isa = allowed_isa();
        // Fails if oneDNN was used before: the program's own settings apply then.
        if (isa < machine_isa())
            static_cast<void>(dnnl::set_max_cpu_isa(isa == Isa::avx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::sse41));
        dnnl::engine made(dnnl::engine::kind::cpu, 0);
        // Creates oneDNN's static objects for memories and streams before the first kernel runs: static objects created
        // by later calls would be destroyed before the workers are idle.
        const dnnl::memory::desc number({1}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::a);
        static_cast<void>(dnnl::memory(number, made));
        static_cast<void>(dnnl::stream(made));
        return made;
    }();
    return engine;
}

dnnl::stream& cpu_stream() {
    struct Own {
        dnnl::stream stream{cpu_engine()};
    };
    return per_thread<Own>().stream;
}

dnnl::primitive_attr user_scratchpad() {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attributes;
}

ThreadScope::ThreadScope(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
ThreadScope::~ThreadScope() { omp_set_num_threads(before_); }

bool is_reference(std::string_view implementation) {
    // "ref:any", "ref_...", "gemm:ref"; names of jit kernels may contain the letters "ref" elsewhere.
    return implementation.substr(0, 3) == "ref" || implementation.find(":ref") != std::string_view::npos;
}

std::string describe(const Desc& desc) {
    const char* type = "?";
    switch (data_type(desc)) {
        case dnnl::memory::data_type::f32: type = "f32"; break;
        case dnnl::memory::data_type::bf16: type = "bf16"; break;
        case dnnl::memory::data_type::f16: type = "f16"; break;
        case dnnl::memory::data_type::s32: type = "s32"; break;
        case dnnl::memory::data_type::s8: type = "s8"; break;
        case dnnl::memory::data_type::u8: type = "u8"; break;
        default: break;
    }
    std::string text = type;
    const char* before = " (";
    for (const dnnl::memory::dim size : dims(desc)) {
        text += before + std::to_string(size);
        before = ", ";
    }
    return text + ")";
}

void throw_no_kernel(const std::string& what, const std::string& tried) {
    throw DeviceError(fmt::format(
        "{}: oneDNN has no fast kernel on this processor (offered: {}); expected a newer oneDNN", what, tried));
}

}  // namespace lockstep::cpu::onednn
