#include "lockstep/ops/cpu/conv/winograd.h"

#include <fmt/format.h>

#include <cstdint>

#include "lockstep/runtime/error.h"

namespace lockstep::cpu {
namespace {

const WinogradKernels& kernels_of(Isa isa, DType stored) {
    if (stored == DType::bf16) return isa == Isa::avx512 ? avx512::winograd_kernels_bf16 : avx2::winograd_kernels_bf16;
    return isa == Isa::avx512 ? avx512::winograd_kernels : avx2::winograd_kernels;
}

void check_alignment(const char* what, const void* pointer) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % 64 != 0)
        throw InvalidArgument(
            fmt::format("Winograd convolution: {} at {} is not aligned; expected 64 bytes", what, pointer));
}

}  // namespace

bool WinogradConv::supported(Isa isa, const WinogradShape& s, DType stored) {
    if (stored != DType::f32 && stored != DType::bf16) return false;
    const int width = isa_vector_width(isa);
    return isa != Isa::generic && isa <= machine_isa() && s.n > 0 && s.c > 0 && s.k > 0 && s.c % width == 0 &&
           s.k % width == 0 && s.pad >= 0 && s.pad <= 2 && s.h > 0 && s.w > 0 && s.out_h() > 0 && s.out_w() > 0;
}

WinogradConv::WinogradConv(Isa isa, const WinogradShape& shape, DType stored)
    : shape_(shape), kernels_(&kernels_of(isa, stored)) {
    if (!supported(isa, shape, stored))
        throw InvalidArgument(
            fmt::format("Winograd convolution: no kernel on {} for {} x ({}, {}, {}, {}), {} output channels, padding "
                        "{}; expected a supported shape",
                        isa_name(isa), name_of(stored), shape.n, shape.c, shape.h, shape.w, shape.k, shape.pad));
}

std::size_t WinogradConv::scratch_bytes(int threads) const {
    if (threads < 1)
        throw InvalidArgument(
            fmt::format("Winograd convolution: invalid number of threads ({}); expected at least 1", threads));
    return static_cast<std::size_t>(kernels_->scratch_floats(shape_, threads)) * sizeof(float);
}

void WinogradConv::forward(const void* x, const void* w, const float* bias, bool relu, void* y, void* scratch,
                           int threads) const {
    check_alignment("x", x);
    check_alignment("y", y);
    check_alignment("scratch", scratch);
    kernels_->forward(shape_, x, w, bias, relu, y, static_cast<float*>(scratch), threads);
}

void WinogradConv::backward_data(const void* dy, const void* w, const void* made, void* dx, void* scratch,
                                 int threads) const {
    check_alignment("dy", dy);
    check_alignment("ReLU's output", made);
    check_alignment("dx", dx);
    check_alignment("scratch", scratch);
    kernels_->backward_data(shape_, dy, w, made, dx, static_cast<float*>(scratch), threads);
}

void WinogradConv::backward_weights(const void* x, const void* dy, void* dw, float* db, void* scratch,
                                    int threads) const {
    check_alignment("x", x);
    check_alignment("dy", dy);
    check_alignment("scratch", scratch);
    kernels_->backward_weights(shape_, x, dy, dw, db, static_cast<float*>(scratch), threads);
}

}  // namespace lockstep::cpu
