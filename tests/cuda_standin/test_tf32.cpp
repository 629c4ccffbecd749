// TF32 on GPUs: cuDNN and cuBLASLt are allowed to use it only with allow_tf32, and only in f32.
#include <cudnn.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;
using test::Images;
using test::Trained;

namespace {

using Calls = std::set<std::string>;

/// Convolutions and matrix products of `work` on all GPUs, with the requested arithmetic.
Calls calls_of(const std::function<void()>& work) {
    standin::reset_counters();
    work();
    Calls calls;
    for (const standin::DeviceCounters& device : standin::counters().devices)
        for (const auto& [call, count] : device.arithmetic) calls.insert(call);
    return calls;
}

/// The three calls of a convolution and its gradients.
Calls convolution(const std::string& arithmetic) {
    return {"cudnnConvolutionBackwardData " + arithmetic, "cudnnConvolutionBackwardFilter " + arithmetic,
            "cudnnConvolutionForward " + arithmetic};
}
Calls product(const std::string& arithmetic) { return {"cublasLtMatmul " + arithmetic}; }
Calls both(Calls a, const Calls& b) {
    a.insert(b.begin(), b.end());
    return a;
}

const Calls strict = both(convolution("f32 CUDNN_FMA_MATH"), product("f32 CUBLAS_COMPUTE_32F"));
const Calls in_tf32 = both(convolution("f32 CUDNN_DEFAULT_MATH"), product("f32 CUBLAS_COMPUTE_32F_FAST_TF32"));

Tensor leaf(const Shape& shape, DType dtype) {
    return Tensor::full(shape, 0.5, DType::f32, Device::cuda(0)).to(dtype).detach().requires_grad_();
}

void convolve(DType dtype) {
    sum(conv2d(leaf({2, 3, 6, 5}, dtype), leaf({4, 3, 3, 3}, dtype), leaf({4}, dtype))).backward();
}
void apply_linear(DType dtype) { sum(linear(leaf({6, 5}, dtype), leaf({4, 5}, dtype), leaf({4}, dtype))).backward(); }
void multiply(DType dtype) { sum(matmul(leaf({6, 5}, dtype), leaf({5, 4}, dtype))).backward(); }
void multiply_batch(DType dtype) { sum(matmul(leaf({3, 6, 5}, dtype), leaf({3, 5, 4}, dtype))).backward(); }

void check_eager(bool allowed) {
    INFO("allowed " << allowed);
    CHECK(calls_of([] { convolve(DType::f32); }) ==
          convolution(allowed ? "f32 CUDNN_DEFAULT_MATH" : "f32 CUDNN_FMA_MATH"));
    CHECK(calls_of([] { convolve(DType::f16); }) == convolution("f16 CUDNN_TENSOR_OP_MATH"));
    CHECK(calls_of([] { convolve(DType::bf16); }) == convolution("bf16 CUDNN_TENSOR_OP_MATH"));
    for (const auto work : {apply_linear, multiply, multiply_batch}) {
        CHECK(calls_of([&] { work(DType::f32); }) ==
              product(allowed ? "f32 CUBLAS_COMPUTE_32F_FAST_TF32" : "f32 CUBLAS_COMPUTE_32F"));
        CHECK(calls_of([&] { work(DType::f64); }) == product("f64 CUBLAS_COMPUTE_64F"));
        CHECK(calls_of([&] { work(DType::f16); }) == product("f16 CUBLAS_COMPUTE_32F"));
        CHECK(calls_of([&] { work(DType::bf16); }) == product("bf16 CUBLAS_COMPUTE_32F"));
    }
}

/// Convolutions that benchmarking can choose an algorithm for.
struct Convolutions {
    Conv2d first{4, 6, 3, {.padding = 1}}, second{6, 5, 3};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

/// Algorithms that a step with benchmarking chooses, by problem.
std::map<std::string, std::string> chosen(bool allow_tf32, DType dtype,
                                          const std::map<std::string, std::string>& before = {}) {
    manual_seed(1);
    EngineOptions options{.shards = 1, .convolution = ConvAlgorithm::benchmark, .allow_tf32 = allow_tf32};
    if (dtype != DType::f32) options.autocast = dtype;
    DataParallel model(Convolutions{}, gpus(1), options);
    SGD sgd(model, {.lr = 0.01});
    if (!before.empty()) model.engine().set_algorithms(before);
    model.step(sgd, Tensor::randn({4, 4, 8, 8}), Tensor::randn({4, 5, 6, 6}), mse_loss);
    model.synchronize();
    CHECK(model.engine().algorithm_trials() > 0);
    return model.engine().algorithms();
}

}  // namespace

TEST_CASE("eager operations use TF32 only in a scope that allows it, and only in f32") {
    check_eager(false);
    {
        const ComputeScope scope({.allow_tf32 = true});
        CHECK(ComputeScope::allow_tf32());
        check_eager(true);
        const ComputeScope inner({.threads = 1});
        CHECK_FALSE(ComputeScope::allow_tf32());
        check_eager(false);
    }
    check_eager(false);
    test::check_no_mistakes();
}

TEST_CASE("the steps of two models use TF32 as their options say, each with its own kernels") {
    const Images images(12);
    Trained<test::Small> by_default(gpus(2), {}), allowed(gpus(2), {.allow_tf32 = true});
    const auto step = [&](Trained<test::Small>& trained) {
        return calls_of([&] {
            trained.step(images, 0, 12);
            trained.model.synchronize();
        });
    };
    for (int i = 0; i < 3; ++i) {
        CHECK(step(by_default) == strict);
        CHECK(step(allowed) == in_tf32);
    }
    // The options of the model apply, not those of the caller's scope.
    const ComputeScope scope({.allow_tf32 = true});
    Trained<test::Small> traced_here(gpus(2), {});
    CHECK(step(traced_here) == strict);

    Trained<test::Small> half(gpus(2), {.allow_tf32 = true, .autocast = DType::bf16});
    CHECK(step(half) == both(convolution("bf16 CUDNN_TENSOR_OP_MATH"), product("bf16 CUBLAS_COMPUTE_32F")));
    test::check_no_mistakes();
}

TEST_CASE("an f16 convolution that is computed in f32, because cuDNN has no algorithm, does not use TF32") {
    const ComputeScope scope({.allow_tf32 = true});
    const NoGrad no_grad;
    const Tensor x = leaf({2, 3, 7, 5}, DType::f16), w = leaf({4, 3, 3, 3}, DType::f16);
    for (int nth = 1; nth <= 4; ++nth)  // two algorithms in two layouts
        standin::inject_failure("cudnnGetConvolutionForwardWorkspaceSize", nth, CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(calls_of([&] { conv2d(x, w); }) == Calls{"cudnnConvolutionForward f32 CUDNN_FMA_MATH"});
    test::check_no_mistakes();
}

TEST_CASE("algorithms chosen for TF32 are not used in f32, and the reverse") {
    const auto in_f32 = chosen(false, DType::f32), with_tf32 = chosen(true, DType::f32, in_f32);
    std::size_t added = 0;
    for (const auto& [problem, algorithm] : in_f32) CHECK_FALSE(test::contains(problem, "TF32"));
    for (const auto& [problem, algorithm] : with_tf32) added += in_f32.contains(problem) ? 0 : 1;
    CHECK(added == in_f32.size());
    for (const auto& [problem, algorithm] : chosen(true, DType::bf16)) CHECK_FALSE(test::contains(problem, "TF32"));
    test::check_no_mistakes();
}

TEST_CASE("a card without TF32 computes in f32", "[.processes]") {
    CHECK(test::in_a_process([] {
              standin::Config config;
              config.devices.resize(1);
              config.devices[0].compute_capability = 75;
              standin::reset(config);
              set_log_handler([](LogLevel, const std::string&) {});
              const ComputeScope scope({.allow_tf32 = true});
              const Calls calls = calls_of([] {
                  convolve(DType::f32);
                  multiply(DType::f32);
              });
              return calls == strict && standin::take_mistakes().empty() ? 0 : 1;
          }) == 0);
}
