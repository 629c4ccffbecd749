#include "lockstep/ops/cpu/first_layer.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep {

bool FirstLayerConv::supported(Isa isa, const FirstLayerShape& s) {
    return isa != Isa::generic && isa <= machine_isa() && s.n > 0 && s.c >= 1 && s.c <= 4 && s.k > 0 && s.h > 0 &&
           s.w > 0 && (s.size == 3 || s.size == 5) && s.stride > 0 && s.pad >= 0 && s.padded_h() >= s.size &&
           s.padded_w() >= s.size;
}

FirstLayerConv::FirstLayerConv(Isa isa, const FirstLayerShape& s)
    : shape_(s), kernels_(isa == Isa::avx512 ? &avx512::first_layer_kernels : &avx2::first_layer_kernels) {
    if (!supported(isa, s))
        throw InvalidArgument(fmt::format(
            "first-layer convolution: no kernel on {} for x ({}, {}, {}, {}), weights ({}, {}, {}, {}), stride {}, "
            "padding {}: use oneDNN's",
            isa_name(isa), s.n, s.c, s.h, s.w, s.k, s.c, s.size, s.size, s.stride, s.pad));
}

std::size_t FirstLayerConv::scratch_bytes() const {
    return static_cast<std::size_t>(kernels_->scratch_floats(shape_)) * sizeof(float);
}

void FirstLayerConv::forward(const float* x, const float* w, const float* bias, float* y, void* scratch,
                             int threads) const {
    kernels_->forward(shape_, x, w, bias, y, static_cast<float*>(scratch), threads);
}

void FirstLayerConv::backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch,
                                      int threads) const {
    kernels_->backward_weights(shape_, x, dy, dw, db, static_cast<float*>(scratch), threads);
}

}  // namespace lockstep
