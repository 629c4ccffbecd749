// Sums over many elements in an order that depends only on their number, for any number of threads.
#pragma once

#include <cstddef>

#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {

constexpr std::ptrdiff_t chunk_elements = 32768;

inline std::ptrdiff_t chunk_count(std::ptrdiff_t elements) { return ceil_div(elements, chunk_elements); }

/// Sum of the doubles part(begin, end) over fixed chunks of [0, elements). `partial` has room for chunk_count(elements)
/// doubles.
template <class Part>
double sum_chunks(int threads, std::ptrdiff_t elements, double* partial, const Part& part) {
    for_parts(threads, elements, chunk_elements, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t at = begin; at < end; at += chunk_elements)
            partial[at / chunk_elements] = static_cast<double>(part(at, std::min(end, at + chunk_elements)));
    });
    double sum = 0;
    for (std::ptrdiff_t i = 0; i < chunk_count(elements); ++i) sum += partial[i];
    return sum;
}

}  // namespace lockstep::cpu
