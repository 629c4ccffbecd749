// Conversions of contiguous runs between f32 and the 16-bit floats, with the processor's instructions if available. The
// bits are those of Half and BFloat16 element by element.
#pragma once

#include <cstddef>

#include "lockstep/runtime/dtype.h"

namespace lockstep::float16 {

void upcast(const Half* x, float* y, std::ptrdiff_t n);
void upcast(const BFloat16* x, float* y, std::ptrdiff_t n);
/// Rounds to nearest even; NaN stays NaN.
void downcast(const float* x, Half* y, std::ptrdiff_t n);
void downcast(const float* x, BFloat16* y, std::ptrdiff_t n);

}  // namespace lockstep::float16
