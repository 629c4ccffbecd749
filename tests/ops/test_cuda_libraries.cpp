// Handling of rejected cuDNN calls in the CUDA backend, on the stand-in.
#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/ops/cuda/conv_candidates.h"
#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/reference/ops.h"

using namespace lockstep;

namespace {

const Device gpu = Device::cuda(0);

struct NoMistakes {
    ~NoMistakes() {
        for (const auto& each : standin::take_mistakes()) FAIL_CHECK(each.message);
    }
};

std::vector<float> uneven(std::size_t count, double seed) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(std::sin(seed + 1.7 * static_cast<double>(i)));
    return values;
}

Tensor on_gpu(const std::vector<float>& values, const Shape& shape) { return Tensor::from(values, shape).to(gpu); }

reference::Array as_array(const std::vector<float>& values, const reference::Sizes& shape) {
    reference::Array array(shape);
    for (std::size_t i = 0; i < values.size(); ++i) array.v[i] = static_cast<double>(values[i]);
    return array;
}

void check_close(const Tensor& found, const reference::Array& expected, const std::string& what) {
    INFO(what);
    const std::vector<float> values = found.to_vector<float>();
    REQUIRE(values.size() == expected.v.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        REQUIRE(static_cast<double>(values[i]) == Approx(expected.v[i]).epsilon(1e-5).margin(1e-5));
}

}  // namespace

TEST_CASE("algorithms of Winograd and Fourier are candidates only without groups and dilation") {
    const NoMistakes end;
    for (const ConvAlgorithm choice : {ConvAlgorithm::automatic, ConvAlgorithm::benchmark}) {
        KernelRequest request;
        request.device = gpu;
        request.in = request.out = {TensorMeta::contiguous(DType::f32, {2, 4, 8, 8})};
        request.convolution = choice;
        const auto direct_only = [&](std::int64_t channels, const ConvGeometry& geometry) {
            const cuda::Sizes sizes{{2, 4, 8, 8}, {4, channels, 3, 3}, {2, 4, 8, 8}, DType::f32};
            const auto ways = cuda::list_candidates(
                request, sizes, geometry, cuda::forward_rule(request), "a query",
                [](cudnnHandle_t, const cuda::Convolution&, cudnnConvolutionFwdAlgo_t, std::size_t* bytes) {
                    *bytes = 1;
                    return CUDNN_STATUS_SUCCESS;
                });
            return std::all_of(ways.begin(), ways.end(), [](const auto& way) {
                return way.algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
                       way.algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
            });
        };
        CHECK_FALSE(direct_only(4, {1, 1, 1, 1, 1, 1, 1}));
        CHECK(direct_only(1, {1, 1, 1, 1, 1, 1, 4}));
        CHECK(direct_only(4, {1, 1, 2, 2, 2, 2, 1}));
        CHECK(direct_only(4, {1, 1, 1, 2, 1, 2, 1}));
    }
}

TEST_CASE("a convolution that cuDNN fails to run falls back to the next algorithm, then to the other layout") {
    const NoMistakes end;
    const auto x = uneven(2 * 3 * 6 * 5, 1), w = uneven(4 * 3 * 3 * 3, 2), b = uneven(4, 3);
    const reference::Window window{1, 1, 1, 1};
    const auto rx = as_array(x, {2, 3, 6, 5}), rw = as_array(w, {4, 3, 3, 3}), rb = as_array(b, {4});
    const reference::Array expected = reference::conv2d(rx, rw, rb, window);
    const std::vector<reference::Array> gradients =
        reference::conv2d_gradients(rx, rw, true, window, reference::Array(expected.shape, 1));
    const struct {
        const char* function;
        int algorithms;  // number of candidates, in both layouts
    } calls[] = {
        {"cudnnConvolutionForward", 4}, {"cudnnConvolutionBackwardData", 2}, {"cudnnConvolutionBackwardFilter", 3}};
    for (const auto& [function, algorithms] : calls)
        for (int refusals = 0; refusals <= algorithms; ++refusals)
            for (const int status : {int{CUDNN_STATUS_NOT_SUPPORTED}, int{CUDNN_STATUS_NOT_SUPPORTED} + 5}) {
                INFO(function << " refused " << refusals << " times with " << status);
                const Tensor tx = on_gpu(x, {2, 3, 6, 5}).requires_grad_(true);
                const Tensor tw = on_gpu(w, {4, 3, 3, 3}).requires_grad_(true);
                const Tensor tb = on_gpu(b, {4}).requires_grad_(true);
                for (int nth = 1; nth <= refusals; ++nth) standin::inject_failure(function, nth, status);
                const auto run = [&] {
                    const Tensor y = conv2d(tx, tw, tb, 1, 1);
                    check_close(y, expected, "forward");
                    sum(y).backward();
                };
                if (refusals < algorithms) {
                    run();
                    check_close(tx.grad(), gradients[0], "gradient of x");
                    check_close(tw.grad(), gradients[1], "gradient of w");
                    check_close(tb.grad(), gradients[2], "gradient of b");
                    continue;
                }
                std::string message;
                try {
                    run();
                } catch (const DeviceError& error) {
                    message = error.what();
                }
                CHECK(message.find(std::string(function) + " failed") != std::string::npos);
            }
}
