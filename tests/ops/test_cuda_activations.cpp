// Activations fused into CUDA kernels, on the stand-in and on GPUs.
#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/machine.h"

using namespace lockstep;

TEST_CASE("fused activations give the bits of separate ones, and unsupported ones are rejected") {
    const Device gpu = Device::cuda(0);
    manual_seed(2);
    const NoGrad no_grad;
    const auto plain = [](const Tensor& t) { return t.to(Device::host()).to_vector<float>(); };
    const auto meta = [](const Tensor& t) { return TensorMeta::contiguous(t.dtype(), t.shape()); };
    const Tensor x = Tensor::randn({2, 8, 9, 7}).to(gpu), w = Tensor::randn({16, 8, 3, 3}).to(gpu);
    for (const Tensor& bias : {Tensor(), Tensor::randn({16}).to(gpu)}) {
        const Tensor y = conv2d(x, w, bias);
        CHECK(plain(apply_one(Conv2dForward{{}, Activation::relu}, {x, w, bias}, meta(y))) == plain(relu(y)));
    }
    const PoolGeometry geometry{3, 3, 2, 2, 1, 1};
    const Tensor activated = relu(x);
    const TensorMeta pooled = TensorMeta::contiguous(DType::f32, {2, 8, 5, 4});
    const auto made = apply(make_operation(MaxPool2dForward{geometry}), {activated},
                            {pooled, TensorMeta::contiguous(DType::u8, pooled.shape)});
    const Tensor dy = Tensor::randn(pooled.shape).to(gpu);
    const Tensor dx = apply_one(MaxPool2dBackward{geometry}, {dy, made[1]}, meta(x));
    CHECK(plain(apply_one(MaxPool2dBackward{geometry, Activation::relu}, {dy, made[1], made[0]}, meta(x))) ==
          plain(apply_one(UnaryBackward<functor::Relu>{}, {dx, activated}, meta(x))));
    const KernelTable& table = KernelTable::of(DeviceKind::cuda);
    CHECK(table.has(*make_operation(LinearForward{})));
    CHECK_FALSE(table.has(*make_operation(LinearForward{Activation::relu})));
    CHECK_FALSE(table.has(*make_operation(Conv2dBackwardData{{}, Activation::relu})));
    const Tensor rows = Tensor::randn({3, 4}).to(gpu);
    CHECK_THROWS_AS(
        apply_one(LinearForward{Activation::relu}, {rows, rows, Tensor()}, TensorMeta::contiguous(DType::f32, {3, 3})),
        DeviceError);
    test::check_no_mistakes();
}
