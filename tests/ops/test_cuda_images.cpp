// CUDA kernels for images of every dtype and layout, on the stand-in and on GPUs: 16-bit images are not converted, and
// their values are those of f64, rounded once.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/machine.h"
#include "lockstep/tests/reference/relative_error.h"

using namespace lockstep;
using reference::relative_error;

namespace {

using Floats = std::vector<float>;

const Device gpu = Device::cuda(0);

Floats floats(const Tensor& tensor) { return tensor.to(DType::f32).to(Device::host()).to_vector<float>(); }
TensorMeta meta(DType dtype, const Shape& shape) { return TensorMeta::contiguous(dtype, shape); }

/// Numbers that are exact in 16 bits, in one of the layouts of images, `offset` elements after aligned memory.
Tensor image(const Shape& shape, DType dtype, bool channels_last, std::int64_t offset = 0) {
    const Tensor x = Tensor::randn(shape).to(dtype).to(gpu);
    const Tensor ordered = channels_last ? x.transpose(1, 2).transpose(2, 3).contiguous() : x;
    const Tensor room = Tensor::full({x.numel() + offset}, 7, dtype, gpu);
    const Tensor placed = room.slice(0, offset, offset + x.numel());
    placed.copy_(ordered.reshape({x.numel()}));
    const Tensor moved = placed.reshape(ordered.shape());
    return channels_last ? moved.transpose(2, 3).transpose(1, 2) : moved;
}

/// Scratch of the kernel for these operands.
template <class Op>
std::size_t scratch_of(const Op& op, const std::vector<Tensor>& inputs, const std::vector<TensorMeta>& outputs) {
    KernelRequest request;
    request.device = gpu;
    for (const Tensor& input : inputs) {
        request.in.push_back(input.defined() ? meta(input.dtype(), input.shape()) : TensorMeta());
        if (input.defined()) request.in.back().strides = input.strides();
    }
    request.out.assign(outputs.begin(), outputs.end());
    return KernelTable::of(DeviceKind::cuda).make(*make_operation(op), request)->scratch_bytes();
}

/// Compares `op` with a CPU device's f64. `images`: shapes of outputs in the first input's dtype; `others`: shapes of
/// the outputs after them.
template <class Op>
std::vector<Tensor> require_as_f64(const Op& op, const std::vector<Tensor>& inputs, const std::vector<Shape>& images,
                                   const std::vector<Shape>& others = {}, DType dtype_of_others = DType::f32) {
    const DType dtype = inputs[0].dtype();
    const auto as_wide = [](DType of) { return is_floating(of) ? DType::f64 : of; };
    std::vector<Tensor> wide;
    for (const Tensor& input : inputs)
        wide.push_back(input.defined() ? input.contiguous().to(Device::cpu(0)).to(as_wide(input.dtype())) : input);
    std::vector<TensorMeta> metas;
    for (const Shape& shape : images) metas.push_back(meta(dtype, shape));
    for (const Shape& shape : others) metas.push_back(meta(dtype_of_others, shape));
    std::vector<Output> outputs, wide_outputs;
    for (const TensorMeta& each : metas) {
        outputs.emplace_back(each);
        wide_outputs.emplace_back(meta(as_wide(each.dtype), each.shape));
    }
    INFO(make_operation(op)->name() << ", " << name_of(dtype));
    // An f32 kernel between conversions would need scratch for copies in f32.
    CHECK(scratch_of(op, inputs, metas) < static_cast<std::size_t>(inputs[0].numel()) * sizeof(float));
    const auto got = apply(make_operation(op), inputs, outputs);
    const auto expected = apply(make_operation(op), wide, wide_outputs);
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("output " << i);
        CHECK(got[i].dtype() == metas[i].dtype);
        const double rounding = got[i].dtype() == DType::bf16 ? 0x1p-8 : got[i].dtype() == DType::f16 ? 0x1p-11 : 4e-6;
        CHECK(relative_error(floats(got[i]), floats(expected[i])) <= rounding);
    }
    return got;
}

template <class Check>
void for_each_layout(const Check& check) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
        for (const bool channels_last : {false, true})
            for (const std::int64_t offset : {0, 1}) {
                INFO((channels_last ? "channels last" : "channels first") << ", offset " << offset);
                check([&](const Shape& shape) { return image(shape, dtype, channels_last, offset); });
            }
}

}  // namespace

TEST_CASE("batch norm of images of any dtype, layout and alignment") {
    manual_seed(3);
    const NoGrad no_grad;
    const Tensor weight = Tensor::randn({16}).to(gpu), bias = Tensor::randn({16}).to(gpu);
    for_each_layout([&](const auto& make) {
        for (const Shape& shape : {Shape{3, 16, 6, 4}, Shape{2, 16, 3, 5}, Shape{40, 16, 1, 9}}) {
            const Tensor x = make(shape), dy = make(shape);
            const Tensor stats = require_as_f64(BatchNormStats{}, {x}, {}, {{33}})[0];
            require_as_f64(BatchNormNormalize{1e-5}, {x, stats, weight, bias}, {shape});
            require_as_f64(BatchNormNormalize{1e-5, Activation::relu}, {x, stats, weight, bias}, {shape});
            require_as_f64(BatchNormNormalize{1e-5}, {x, stats, Tensor(), Tensor()}, {shape});
            const Tensor sums = require_as_f64(BatchNormBackwardSums{1e-5}, {x, dy, stats}, {}, {{32}, {16}, {16}})[0];
            require_as_f64(BatchNormBackwardData{1e-5}, {x, dy, stats, weight, sums}, {shape});
            require_as_f64(BatchNormBackwardData{1e-5}, {x, dy, stats, Tensor(), Tensor()}, {shape});
        }
    });
    test::check_no_mistakes();
}

TEST_CASE("the gradient of batch norm with ReLU has the bits of both operations") {
    manual_seed(8);
    const NoGrad no_grad;
    const double eps = 1e-5;
    const Tensor weight = Tensor::randn({16}).to(gpu), bias = Tensor::randn({16}).to(gpu);
    for_each_layout([&](const auto& make) {
        for (const Shape& shape : {Shape{3, 16, 6, 4}, Shape{2, 16, 3, 5}, Shape{40, 16, 1, 9}, Shape{2, 16, 3, 4}})
            for (const bool affine : {true, false}) {
                const Tensor x = make(shape), dy = make(shape);
                const Tensor w = affine ? weight : Tensor(), b = affine ? bias : Tensor();
                const Output like_x = meta(x.dtype(), shape), wide = meta(DType::f32, {32}),
                             of_channels = meta(DType::f32, {16});
                const Tensor stats = apply_one(BatchNormStats{}, {x}, meta(DType::f32, {33}));
                const Tensor y = apply_one(BatchNormNormalize{eps, Activation::relu}, {x, stats, w, b}, like_x);
                const Tensor through = apply_one(UnaryBackward<functor::Relu>{}, {dy, y}, like_x);
                const std::vector<Output> sums{wide, of_channels, of_channels};
                const auto expected = apply(make_operation(BatchNormBackwardSums{eps}), {x, through, stats}, sums);
                const auto found =
                    apply(make_operation(BatchNormBackwardSums{eps, Activation::relu}), {x, dy, stats, w, b}, sums);
                for (std::size_t i = 0; i < expected.size(); ++i) CHECK(floats(found[i]) == floats(expected[i]));
                const Tensor dx =
                    apply_one(BatchNormBackwardData{eps, Activation::relu}, {x, dy, stats, w, found[0], b}, like_x);
                CHECK(floats(dx) ==
                      floats(apply_one(BatchNormBackwardData{eps}, {x, through, stats, w, expected[0]}, like_x)));
                // Half of the elements are negative, and as many gradients do not pass.
                const Floats passed = floats(through);
                CHECK(std::count(passed.begin(), passed.end(), 0.0f) > std::ssize(passed) / 8);
            }
    });
    test::check_no_mistakes();
}

TEST_CASE("moments of channels with a large mean keep their digits") {
    const NoGrad no_grad;
    Floats values(4 * 3 * 70 * 11);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 4096 + static_cast<float>(i * 37 % 101) / 64;
    values[0] = -1000;  // the first element of a channel is far from the others
    const Tensor x = Tensor::from(values, {4, 3, 70, 11}, gpu);
    const Floats stats = floats(apply_one(BatchNormStats{}, {x}, meta(DType::f32, {7})));
    for (std::size_t c = 0; c < 3; ++c) {
        double mean = 0, m2 = 0;
        const auto for_channel = [&](const auto& use) {
            for (std::size_t n = 0; n < 4; ++n)
                for (std::size_t k = 0; k < 770; ++k) use(static_cast<double>(values[(n * 3 + c) * 770 + k]));
        };
        for_channel([&](double value) { mean += value / 3080; });
        for_channel([&](double value) { m2 += (value - mean) * (value - mean); });
        CHECK(std::abs(stats[c] - mean) <= 1e-6 * std::abs(mean));
        CHECK(std::abs(stats[3 + c] - m2) <= 1e-5 * m2);
    }
    test::check_no_mistakes();
}

TEST_CASE("max pooling of images of any dtype, layout and alignment") {
    manual_seed(4);
    const NoGrad no_grad;
    for_each_layout([&](const auto& make) {
        for (const Shape& shape : {Shape{2, 16, 6, 8}, Shape{2, 8, 7, 5}, Shape{1, 3, 7, 6}, Shape{1, 8, 5, 24}})
            for (const PoolGeometry& g :
                 {PoolGeometry{}, PoolGeometry{3, 3, 3, 3, 0, 0}, PoolGeometry{3, 3, 2, 2, 1, 1},
                  PoolGeometry{3, 2, 1, 3, 1, 0}, PoolGeometry{2, 2, 1, 1, 0, 0}}) {
                const Tensor x = make(shape);
                const auto windows = [](std::int64_t size, int kernel, int stride, int pad) {
                    return (size + 2 * pad - kernel) / stride + 1;
                };
                const Shape pooled{shape[0], shape[1], windows(shape[2], g.kernel_h, g.stride_h, g.pad_h),
                                   windows(shape[3], g.kernel_w, g.stride_w, g.pad_w)};
                const auto made = require_as_f64(MaxPool2dForward{g}, {x}, {pooled}, {pooled}, DType::u8);
                const Tensor dy = make(pooled);
                require_as_f64(MaxPool2dBackward{g, Activation::none}, {dy, made[1]}, {shape});
                require_as_f64(MaxPool2dBackward{g, Activation::relu}, {dy, made[1], made[0]}, {shape});
            }
    });
    test::check_no_mistakes();
}

TEST_CASE("windows of the lowest number or with NaN have the positions of other devices") {
    const NoGrad no_grad;
    constexpr float lowest = -INFINITY;
    for_each_layout([&](const auto& make) {
        for (const PoolGeometry& g : {PoolGeometry{}, PoolGeometry{3, 3, 2, 2, 1, 1}, PoolGeometry{3, 3, 1, 1, 1, 1}}) {
            const Shape shape{2, 8, 6, 16}, pooled{2, 8, g.stride_h == 1 ? 6 : 3, g.stride_h == 1 ? 16 : 8};
            for (const float low : {lowest, NAN}) {
                const Tensor x = make(shape);
                Floats values = floats(x);
                for (std::size_t i = 0; i < values.size(); ++i)
                    if (i % 96 < 40 || i % 7 == 0) values[i] = i % 3 == 0 ? low : lowest;
                x.copy_(Tensor::from(values, shape).to(x.dtype()).to(gpu));
                const std::vector<Output> outputs{meta(x.dtype(), pooled), meta(DType::u8, pooled)};
                const auto found = apply(make_operation(MaxPool2dForward{g}), {x}, outputs);
                const auto expected =
                    apply(make_operation(MaxPool2dForward{g}), {x.contiguous().to(Device::cpu(0))}, outputs);
                const auto bytes = [](const Tensor& positions) {
                    return positions.contiguous().to(Device::host()).to_vector<std::uint8_t>();
                };
                CHECK(bytes(found[1]) == bytes(expected[1]));
                const Floats y = floats(found[0]), expected_y = floats(expected[0]);
                for (std::size_t i = 0; i < y.size(); ++i)
                    CHECK((y[i] == expected_y[i] || (std::isnan(y[i]) && std::isnan(expected_y[i]))));
            }
        }
    });
    test::check_no_mistakes();
}

TEST_CASE("interpolated values do not depend on alignment") {
    const NoGrad no_grad;
    const Shape small{2, 8, 5, 12}, large{2, 8, 10, 24};
    for (const DType dtype : {DType::bf16, DType::f32})
        for (const bool last : {false, true})
            for (const bool nearest : {false, true}) {
                const InterpolateGeometry g{nearest, false, 0.5, 0.5};
                const auto at = [&](const Shape& shape, std::int64_t offset) {
                    manual_seed(6);
                    return image(shape, dtype, last, offset);
                };
                const auto forward = [&](std::int64_t offset) {
                    return floats(apply_one(InterpolateForward{g}, {at(small, offset)}, meta(dtype, large)));
                };
                const auto backward = [&](std::int64_t offset) {
                    return floats(apply_one(InterpolateBackward{g}, {at(large, offset)}, meta(dtype, small)));
                };
                CHECK(forward(0) == forward(1));
                CHECK(backward(0) == backward(1));
            }
    test::check_no_mistakes();
}

TEST_CASE("interpolation of images of any dtype, layout and alignment") {
    manual_seed(5);
    const NoGrad no_grad;
    for_each_layout([&](const auto& make) {
        for (const auto& [from, to] : {std::pair<Shape, Shape>{{2, 16, 3, 4}, {2, 16, 6, 8}},
                                       {{1, 8, 7, 9}, {1, 8, 2, 23}},
                                       {{1, 8, 1, 3}, {1, 8, 2, 6}},
                                       {{1, 8, 4, 1}, {1, 8, 8, 2}},
                                       {{1, 8, 5, 24}, {1, 8, 10, 48}}})
            for (const bool nearest : {false, true}) {
                const InterpolateGeometry g{nearest, false, static_cast<double>(from[2]) / static_cast<double>(to[2]),
                                            static_cast<double>(from[3]) / static_cast<double>(to[3])};
                require_as_f64(InterpolateForward{g}, {make(from)}, {to});
                require_as_f64(InterpolateBackward{g}, {make(to)}, {from});
            }
    });
    test::check_no_mistakes();
}
