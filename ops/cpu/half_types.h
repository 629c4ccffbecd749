// 16-bit activations in loops that compute in f32: one run at a time is widened into the first-level cache, so that
// memory is read and written in 16 bits. The bits are those of the f32 loops, rounded to 16 bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/internal/half_images.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/internal/float16_rows.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

template <class Stored>
constexpr bool is_half = std::is_same_v<Stored, Half> || std::is_same_v<Stored, BFloat16>;

/// Type in which elements are computed.
template <class Stored>
using Arithmetic = std::conditional_t<is_half<Stored>, float, Stored>;

/// Number of elements that are widened at a time: a multiple of `lanes`.
constexpr std::ptrdiff_t run_elements = 1024;
static_assert(run_elements % lanes == 0);

/// Calls work(first, count) for runs that cover n elements.
template <class Work>
void for_runs(std::ptrdiff_t n, const Work& work) {
    for (std::ptrdiff_t first = 0; first < n; first += run_elements) work(first, std::min(run_elements, n - first));
}

/// ReLU in place. On the rounded values, because small negative numbers round to -0, which remains.
template <class Stored>
void relu_of_half(Stored* y, std::ptrdiff_t count) {
    constexpr std::uint16_t negative_zero = 0x8000;
    constexpr std::uint16_t negative_infinity = std::is_same_v<Stored, Half> ? 0xFC00 : 0xFF80;  // above: NaN
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        const std::uint16_t bits = y[i].bits;
        y[i].bits = bits > negative_zero && bits <= negative_infinity ? std::uint16_t{0} : bits;
    }
}

/// Elements [first, first + count) in f32; widened into `buffer` (run_elements) if necessary.
template <class Stored>
const Arithmetic<Stored>* wide(const Stored* x, std::ptrdiff_t count, Arithmetic<Stored>* buffer) {
    if constexpr (is_half<Stored>) {
        float16::upcast(x, buffer, count);
        return buffer;
    } else {
        return x;
    }
}

/// Calls make(BFloat16{}), make(Half{}), make(float{}) or make(double{}); throws InvalidArgument for another dtype.
template <class Op, class Make>
auto for_stored(const Op& operation, DType dtype, const Make& make) {
    if (dtype == DType::bf16) return make(BFloat16{});
    if (dtype == DType::f16) return make(Half{});
    return for_floating(operation, dtype, make);
}

}  // namespace lockstep::cpu
