// Activations in 16 bits under loops that compute in f32: a run at a time is widened into the first-level cache, so
// that memory is read and written in 16 bits. The same bits as the loops have on f32 that was rounded to 16.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/internal/float16_rows.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

template <class Stored>
constexpr bool is_short = std::is_same_v<Stored, Half> || std::is_same_v<Stored, BFloat16>;

/// What elements of a type are computed in.
template <class Stored>
using Arithmetic = std::conditional_t<is_short<Stored>, float, Stored>;

/// Elements that are widened at a time: a multiple of `lanes`.
constexpr std::ptrdiff_t run_elements = 1024;
static_assert(run_elements % lanes == 0);

/// work(first, count) for runs that cover n elements.
template <class Work>
void for_runs(std::ptrdiff_t n, const Work& work) {
    for (std::ptrdiff_t first = 0; first < n; first += run_elements) work(first, std::min(run_elements, n - first));
}

/// Elements [first, first + count) in f32: in `room` (run_elements) where they have to be widened.
template <class Stored>
const Arithmetic<Stored>* wide(const Stored* x, std::ptrdiff_t count, Arithmetic<Stored>* room) {
    if constexpr (is_short<Stored>) {
        float16::widen(x, room, count);
        return room;
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

/// Whether all images of a request (4 dimensions) are of the 16 bits that the first input is of, and all else is f32 or
/// no float.
inline bool images_are_short(const KernelRequest& request) {
    const DType dtype = request.in[0].dtype;
    const auto fits = [&](const TensorMeta& meta) {
        if (meta.shape.empty()) return true;  // missing
        return meta.shape.dims() == 4 && is_floating(meta.dtype) ? meta.dtype == dtype : !is_short_float(meta.dtype);
    };
    return is_short_float(dtype) && std::all_of(request.in.begin(), request.in.end(), fits) &&
           std::all_of(request.out.begin(), request.out.end(), fits);
}

/// `make`, where images_are_short; otherwise null, for KernelTable::add_short_floats.
template <class Op, std::unique_ptr<Kernel> (*make)(const Op&, KernelRequest&)>
std::unique_ptr<Kernel> make_for_short_images(const Op& operation, KernelRequest& request) {
    return images_are_short(request) ? make(operation, request) : nullptr;
}

}  // namespace lockstep::cpu
