// Conversions of contiguous runs between f32 and the 16-bit floats, with the processor's instructions where it has
// them: the same bits as Half and BFloat16 give one by one.
#pragma once

#include <cstddef>

#include "lockstep/runtime/dtype.h"

namespace lockstep::float16 {

void widen(const Half* x, float* y, std::ptrdiff_t n);
void widen(const BFloat16* x, float* y, std::ptrdiff_t n);
/// Rounds to nearest even; NaN stays NaN.
void narrow(const float* x, Half* y, std::ptrdiff_t n);
void narrow(const float* x, BFloat16* y, std::ptrdiff_t n);

}  // namespace lockstep::float16
