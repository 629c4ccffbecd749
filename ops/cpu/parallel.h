// Cutting a kernel's work into fixed parts, one for each of its threads.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep::cpu {

/// Calls work(begin, end) for parts that cover [0, count), in parallel on `threads` OpenMP threads. Parts are multiples
/// of `grain` (but the last) and depend on the arguments alone.
template <class Work>
void for_parts(int threads, std::ptrdiff_t count, std::ptrdiff_t grain, const Work& work) {
    const std::ptrdiff_t grains = (count + grain - 1) / grain;
    const std::ptrdiff_t part = (grains + threads - 1) / threads * grain;
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

/// Elements are cut into multiples of this: whole cache lines of any element type.
constexpr std::ptrdiff_t element_grain = 4096;

/// What a thread does with `elements` simple ones in the time that another one costs to fork and to join.
constexpr std::ptrdiff_t thread_elements = 32768;

/// How many of `threads` this much work is worth: a rule of its size alone.
inline int worthwhile_threads(int threads, std::ptrdiff_t elements) {
    return static_cast<int>(std::clamp<std::ptrdiff_t>(elements / thread_elements, 1, threads));
}

/// for_parts over simple elements.
template <class Work>
void for_element_parts(int threads, std::ptrdiff_t elements, const Work& work) {
    for_parts(worthwhile_threads(threads, elements), elements, element_grain, work);
}

}  // namespace lockstep::cpu
