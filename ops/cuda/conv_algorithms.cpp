#include "lockstep/ops/cuda/conv_algorithms.h"

#include "lockstep/ops/cuda/kernel.h"

namespace lockstep::cuda {

namespace {

/// The limits of operations per byte separate the faster from the slower of two algorithms for the layers of U-Net,
/// ResNet and MNIST networks on an H200 (bench/results/2026-11-26-convolutions-h200.md).
template <class Algorithm>
AlgorithmRule<Algorithm> make_rule(const KernelRequest& request, std::vector<Algorithm> direct, Algorithm winograd,
                                   double operations_per_byte, const std::vector<Algorithm>& others) {
    const bool strict = request.in[0].dtype == DType::f32 && !uses_tf32(request);
    AlgorithmRule<Algorithm> rule{{!strict, strict}, std::move(direct), {}, winograd, {}};
    if (strict && request.convolution == ConvAlgorithm::automatic) rule.operations_per_byte = operations_per_byte;
    if (request.convolution == ConvAlgorithm::benchmark) {
        rule.others.push_back(winograd);
        rule.others.insert(rule.others.end(), others.begin(), others.end());
    }
    return rule;
}

}  // namespace

AlgorithmRule<cudnnConvolutionFwdAlgo_t> forward_rule(const KernelRequest& request) {
    return make_rule<cudnnConvolutionFwdAlgo_t>(
        request, {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM},
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, 44,
        {CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
         CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD});
}

AlgorithmRule<cudnnConvolutionBwdDataAlgo_t> backward_data_rule(const KernelRequest& request) {
    return make_rule<cudnnConvolutionBwdDataAlgo_t>(
        request, {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1}, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, 32,
        {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
         CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD});
}

AlgorithmRule<cudnnConvolutionBwdFilterAlgo_t> backward_weights_rule(const KernelRequest& request) {
    // The direct algorithm for weights is several times slower than that for images.
    return make_rule<cudnnConvolutionBwdFilterAlgo_t>(
        request, {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1}, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, 0,
        {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING});
}

}  // namespace lockstep::cuda
