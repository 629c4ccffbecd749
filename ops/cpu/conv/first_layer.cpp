#include "lockstep/ops/cpu/conv/first_layer.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"

namespace lockstep::cpu {

bool FirstLayerGradient::supported(Isa isa, const FirstLayerShape& s) {
    return isa == Isa::avx2 && isa <= machine_isa() && s.n > 0 && s.c >= 1 && s.c <= 4 && s.k > 0 && s.h > 0 &&
           s.w > 0 && (s.size == 3 || s.size == 5) && s.stride > 0 && s.pad >= 0 && s.padded_h() >= s.size &&
           s.padded_w() >= s.size;
}

FirstLayerGradient::FirstLayerGradient(const FirstLayerShape& s) : shape_(s) {
    if (!supported(Isa::avx2, s))
        throw InvalidArgument(
            fmt::format("first layer's weight gradient: no kernel for x ({}, {}, {}, {}), weights ({}, {}, {}, {}), "
                        "stride {}, padding {}; expected a supported shape",
                        s.n, s.c, s.h, s.w, s.k, s.c, s.size, s.size, s.stride, s.pad));
}

std::size_t FirstLayerGradient::scratch_bytes() const {
    return static_cast<std::size_t>(avx2::first_layer_kernels.scratch_floats(shape_)) * sizeof(float);
}

void FirstLayerGradient::backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch,
                                          int threads) const {
    avx2::first_layer_kernels.backward_weights(shape_, x, dy, dw, db, static_cast<float*>(scratch), threads);
}

}  // namespace lockstep::cpu
