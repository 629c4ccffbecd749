// Rules for cuDNN's convolution algorithms: which are candidates, and which layout and algorithm are tried first. All
// are deterministic: not BWD_DATA_ALGO_0, BWD_FILTER_ALGO_0 or _3, which add with atomics.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/ops/cuda/libraries.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// Limit on the workspace of algorithms that could be replaced: FFTs of large images would take gigabytes.
constexpr std::size_t max_workspace = std::size_t{1} << 29;

/// Candidates for one pass of a convolution.
template <class Algorithm>
struct AlgorithmRule {
    /// Layouts in the order in which they are tried. Tensor cores want adjacent channels. Strict f32 does not use them,
    /// and is faster on plain images.
    std::vector<bool> channels_last;
    std::vector<Algorithm> direct;  ///< for all shapes, in the order in which they are tried
    std::vector<Algorithm> others;  ///< tried after these, without groups and dilation
    /// Winograd's algorithm. It is a candidate for windows of 3 x 3 only: for 5 x 5, its errors are a hundred times
    /// larger.
    Algorithm winograd;
    /// Winograd's algorithm is tried first if it saves more time in arithmetic than its workspace costs: if the direct
    /// algorithm has at least this number of operations per byte of the workspace. Without a value it never is.
    std::optional<double> operations_per_byte;
};

AlgorithmRule<cudnnConvolutionFwdAlgo_t> forward_rule(const KernelRequest& request);
AlgorithmRule<cudnnConvolutionBwdDataAlgo_t> backward_data_rule(const KernelRequest& request);
AlgorithmRule<cudnnConvolutionBwdFilterAlgo_t> backward_weights_rule(const KernelRequest& request);

}  // namespace lockstep::cuda
