// The memory-bound operations of the library, for the benchmarks of CUDA kernels: counts in the PTX interpreter and
// times on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace kernels {

/// One operation on cuda:0.
struct Case {
    std::string name;
    lockstep::DType dtype;
    std::int64_t elements;  ///< size of the largest tensor
    double bytes;           ///< traffic that the operation needs: inputs and results, each once
    /// Makes the operands and returns the work to measure, which may be done repeatedly.
    std::function<std::function<void()>()> make;
};

/// All operations, on tensors of about `scale` million elements: at 1 those of a training step, at 16 larger than the
/// caches of a GPU.
std::vector<Case> all_cases(std::int64_t scale);

}  // namespace kernels
