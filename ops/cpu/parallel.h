// Cutting a kernel's work into fixed parts, one for each of its threads.
#pragma once

#include <algorithm>
#include <cstddef>

namespace lockstep {

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

/// Elements below which another thread costs more than it brings; whole cache lines of any element type.
constexpr std::ptrdiff_t element_grain = 4096;

}  // namespace lockstep
