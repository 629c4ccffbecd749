// Division of a kernel's work into fixed parts, one for each of its threads.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {

/// Calls work(begin, end) for parts that cover [0, count), in parallel on `threads` OpenMP threads. Parts are multiples
/// of `grain` (except the last) and depend only on the arguments.
template <class Work>
void for_parts(int threads, std::ptrdiff_t count, std::ptrdiff_t grain, const Work& work) {
    const std::ptrdiff_t grains = ceil_div(count, grain);
    const std::ptrdiff_t part = ceil_div(grains, threads) * grain;
    if (threads == 1 || part >= count) {
        if (count > 0) work(std::ptrdiff_t{0}, count);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread) {
        const std::ptrdiff_t begin = thread * part, end = std::min(count, begin + part);
        if (begin < end) work(begin, end);
    }
}

/// Elements are divided into multiples of this: whole cache lines of any element type.
constexpr std::ptrdiff_t element_grain = 4096;

/// Number of simple `elements` that a thread processes in the time that forking and joining another one takes.
constexpr std::ptrdiff_t thread_elements = 32768;

/// Number of `threads` that are worthwhile for this much work: a rule that depends only on its size.
inline int worthwhile_threads(int threads, std::ptrdiff_t elements) {
    return static_cast<int>(std::clamp<std::ptrdiff_t>(elements / thread_elements, 1, threads));
}

/// for_parts over simple elements.
template <class Work>
void for_element_parts(int threads, std::ptrdiff_t elements, const Work& work) {
    for_parts(worthwhile_threads(threads, elements), elements, element_grain, work);
}

}  // namespace lockstep::cpu
