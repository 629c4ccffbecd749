// The CPU's kernels for 16-bit floats, against loops in double and against f32 on the same values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/cpu/isa.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/reference/conv.h"
#include "lockstep/tests/reference/relative_error.h"

using namespace lockstep;
using reference::relative_error;

namespace {

using Floats = std::vector<float>;

const Device device = Device::cpu(0);
/// Relative error of one rounding to bf16 and to f16.
double rounding(DType dtype) { return dtype == DType::bf16 ? 1.0 / 256 : 1.0 / 2048; }

/// Numbers that are exact in 16 bits.
Tensor numbers(const Shape& shape, DType dtype, double scale = 1, std::uint64_t seed = 5) {
    manual_seed(seed);
    Floats values = Tensor::randn(shape).to_vector<float>();
    for (float& value : values) value *= static_cast<float>(scale);
    return Tensor::from(values, shape, device).to(dtype);
}
Floats floats(const Tensor& tensor) { return tensor.to(DType::f32).to_vector<float>(); }

TensorMeta meta(DType dtype, const Shape& shape) { return TensorMeta::contiguous(dtype, shape); }

/// The kernel for operands of these types; `request` receives the layouts that it asks for.
template <class Op>
std::shared_ptr<const Kernel> kernel_for(Op op, KernelRequest& request) {
    request.device = device;
    return KernelTable::of(DeviceKind::cpu).make(*make_operation(std::move(op)), request);
}

/// A convolution's result in its layout.
Tensor image(DType dtype, std::int64_t channels, std::int64_t h, std::int64_t w, std::uint64_t seed = 5) {
    const Tensor x = numbers({2, 32, h, w}, dtype, 1, seed), weights = numbers({channels, 32, 3, 3}, dtype, 0.06);
    return apply_one(Conv2dForward{{1, 1, 1, 1}}, {x, weights, Tensor()}, meta(dtype, {2, channels, h, w}));
}

/// Compares `op` on 16-bit inputs with `op` on the same values in f32: outputs in `images` are 16-bit, others f32.
template <class Op>
void require_as_f32(const Op& op, const std::vector<Tensor>& inputs, const std::vector<Shape>& images,
                    const std::vector<Shape>& others = {}) {
    const DType dtype = inputs[0].dtype();
    std::vector<Tensor> wide;
    for (const Tensor& input : inputs)
        wide.push_back(input.defined() && is_half_type(input.dtype()) ? input.to(DType::f32) : input);
    std::vector<Output> short_outputs, wide_outputs;
    for (const Shape& shape : images) {
        short_outputs.emplace_back(meta(dtype, shape));
        wide_outputs.emplace_back(meta(DType::f32, shape));
    }
    for (const Shape& shape : others) {
        short_outputs.emplace_back(meta(DType::f32, shape));
        wide_outputs.emplace_back(meta(DType::f32, shape));
    }
    const auto got = apply(make_operation(op), inputs, short_outputs);
    const auto expected = apply(make_operation(op), wide, wide_outputs);
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO(make_operation(op)->name() << ", output " << i);
        CHECK(got[i].dtype() == (i < images.size() ? dtype : DType::f32));
        CHECK(relative_error(floats(got[i]), floats(expected[i])) < (i < images.size() ? rounding(dtype) : 1e-5));
    }
}

}  // namespace

TEST_CASE("convolutions of bf16 images agree with loops in double, for weights of either dtype") {
    for (const DType of_weights : {DType::bf16, DType::f32})
        for (const reference::ConvShape& s :
             {reference::ConvShape{2, 32, 13, 18, 48, 3, 3, 1, 1}, reference::ConvShape{1, 16, 7, 9, 16, 3, 3, 1, 0},
              reference::ConvShape{2, 8, 9, 8, 24, 3, 3, 1, 1}, reference::ConvShape{1, 3, 12, 10, 16, 3, 3, 1, 1}}) {
            INFO(name_of(of_weights) << " weights, " << s.c << " channels");
            const Tensor x = numbers({s.n, s.c, s.h, s.w}, DType::bf16);
            const Tensor dy = numbers({s.n, s.k, s.out_h(), s.out_w()}, DType::bf16, 0.5);
            const Tensor w = numbers({s.k, s.c, 3, 3}, DType::bf16, 0.1).to(of_weights);
            const Tensor bias = numbers({s.k}, DType::bf16).to(of_weights);
            const int pad = static_cast<int>(s.pad.h);
            const ConvGeometry geometry{1, 1, pad, pad};
            const Tensor y = apply_one(Conv2dForward{geometry}, {x, w, bias}, meta(DType::bf16, dy.shape()));
            const Tensor dx = apply_one(Conv2dBackwardData{geometry}, {dy, w}, meta(DType::bf16, x.shape()));
            const auto gradients = apply(make_operation(Conv2dBackwardWeights{geometry}), {x, dy},
                                         {meta(of_weights, w.shape()), meta(of_weights, bias.shape())});
            const Floats fx = floats(x), fw = floats(w), fdy = floats(dy);
            CHECK(relative_error(floats(y), reference::conv_forward(s, fx, fw, floats(bias))) < 1.0 / 256);
            CHECK(relative_error(floats(dx), reference::conv_backward_data(s, fdy, fw)) < 1.0 / 256);
            const double bound = of_weights == DType::f32 ? 1e-5 : 1.0 / 256;
            CHECK(relative_error(floats(gradients[0]), reference::conv_backward_weights(s, fx, fdy)) < bound);
            CHECK(relative_error(floats(gradients[1]), reference::conv_backward_bias(s, fdy)) < bound);
        }
}

TEST_CASE("Winograd kernels compute in bf16 without f32 copies, with any number of threads") {
    const Shape shape{2, 64, 40, 36};
    KernelRequest request;
    request.in = {meta(DType::bf16, shape), meta(DType::bf16, {64, 64, 3, 3}), TensorMeta()};
    request.out = {meta(DType::bf16, shape)};
    KernelRequest wide = request;
    for (TensorMeta* each : {&wide.in[0], &wide.in[1], &wide.out[0]}) each->dtype = DType::f32;
    const auto kernel = kernel_for(Conv2dForward{{1, 1, 1, 1}}, request);
    const auto wide_kernel = kernel_for(Conv2dForward{{1, 1, 1, 1}}, wide);
    if (cpu::allowed_isa() != cpu::Isa::generic) {
        CHECK(kernel->scratch_bytes() == wide_kernel->scratch_bytes());
        CHECK(request.out[0].opaque->str() == wide.out[0].opaque->str());
    }

    const Tensor x = numbers(shape, DType::bf16), w = numbers({64, 64, 3, 3}, DType::bf16, 0.05);
    std::vector<std::vector<BFloat16>> made;
    for (const int threads : {1, 2, 3}) {
        const ComputeScope scope({.threads = threads, .deterministic = true});
        const Tensor y = apply_one(Conv2dForward{{1, 1, 1, 1}}, {x, w, Tensor()}, meta(DType::bf16, shape));
        made.push_back(y.to_vector<BFloat16>());
    }
    const auto same = [](BFloat16 a, BFloat16 b) { return a.bits == b.bits; };
    for (const auto& other : made) CHECK(std::equal(other.begin(), other.end(), made[0].begin(), same));
}

TEST_CASE("bf16 images use Winograd kernels in benchmark mode and not in direct mode") {
    if (cpu::allowed_isa() == cpu::Isa::generic) return;
    const auto scratch_with = [](ConvAlgorithm algorithm) {
        KernelRequest request;
        request.in = {meta(DType::bf16, {2, 32, 20, 20}), meta(DType::bf16, {32, 32, 3, 3}), TensorMeta()};
        request.out = {meta(DType::bf16, {2, 32, 20, 20})};
        request.convolution = algorithm;
        return kernel_for(Conv2dForward{{1, 1, 1, 1}}, request)->scratch_bytes();
    };
    CHECK(scratch_with(ConvAlgorithm::benchmark) == scratch_with(ConvAlgorithm::automatic));
    CHECK(scratch_with(ConvAlgorithm::direct) != scratch_with(ConvAlgorithm::automatic));
}

TEST_CASE("NaN and infinity propagate through bf16 convolutions") {
    std::vector<float> values(16 * 8 * 8, 1.0F);
    values[3 * 8 + 3] = NAN;
    values[64 + 40] = INFINITY;
    const Tensor x = Tensor::from(values, {1, 16, 8, 8}, device).to(DType::bf16);
    const Tensor w = Tensor::full({16, 16, 3, 3}, 1, DType::bf16, device);
    const Tensor y = apply_one(Conv2dForward{{1, 1, 1, 1}}, {x, w, Tensor()}, meta(DType::bf16, {1, 16, 8, 8}));
    const Floats got = floats(y);
    CHECK(std::isnan(got[3 * 8 + 3]));
    CHECK_FALSE(std::isfinite(got[40]));
    CHECK(std::isfinite(got[7]));
}

TEST_CASE("BatchNorm of 16-bit images has f32 statistics and the values of f32") {
    for (const DType dtype : {DType::bf16, DType::f16}) {
        const Tensor x = image(dtype, 48, 21, 14), dy = numbers({2, 48, 21, 14}, dtype);
        const Shape shape = x.shape();
        require_as_f32(BatchNormStats{}, {x}, {}, {{97}});
        const Tensor stats = apply_one(BatchNormStats{}, {x}, meta(DType::f32, {97}));
        const Tensor weight = numbers({48}, dtype).to(DType::f32), bias = numbers({48}, dtype, 2).to(DType::f32);
        require_as_f32(BatchNormNormalize{1e-5}, {x, stats, weight, bias}, {shape});
        require_as_f32(BatchNormNormalize{1e-5, Activation::relu}, {x, stats, weight, bias}, {shape});
        require_as_f32(BatchNormBackwardSums{1e-5}, {x, dy, stats}, {}, {{96}, {48}, {48}});
        const Tensor sums = apply(make_operation(BatchNormBackwardSums{1e-5}), {x, dy, stats},
                                  {meta(DType::f32, {96}), Output(), Output()})[0];
        require_as_f32(BatchNormBackwardData{1e-5}, {x, dy, stats, weight, sums}, {shape});
    }
}

TEST_CASE("normalisation with ReLU has the bits of both operations, for numbers that round to -0 and NaN too") {
    for (const DType dtype : {DType::bf16, DType::f16}) {
        Floats values(16 * 8 * 8);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = (i % 3 == 0 ? -1.0F : 1.0F) * std::pow(2.0F, -static_cast<float>(i % 24));
        values[5] = NAN;
        values[6] = -INFINITY;
        const Tensor x = Tensor::from(values, {1, 16, 8, 8}, device).to(dtype);
        Floats packed(33);
        std::fill(packed.begin() + 16, packed.end(), 1.0F);
        const Tensor stats = Tensor::from(packed, {33}, device), none;
        const Tensor tiny = Tensor::full({16}, dtype == DType::f16 ? 1e-4 : 1e-37, DType::f32, device);
        const Tensor apart = relu(apply_one(BatchNormNormalize{1e-5}, {x, stats, tiny, none}, meta(dtype, x.shape())));
        const Tensor fused =
            apply_one(BatchNormNormalize{1e-5, Activation::relu}, {x, stats, tiny, none}, meta(dtype, x.shape()));
        const Floats a = floats(apart), b = floats(fused);
        for (std::size_t i = 0; i < a.size(); ++i) {
            INFO(i << ": " << a[i] << ", " << b[i]);
            REQUIRE(std::signbit(a[i]) == std::signbit(b[i]));
            REQUIRE((a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))));
        }
        CHECK(std::any_of(a.begin(), a.end(), [](float v) { return v == 0 && std::signbit(v); }));
    }
}

TEST_CASE("elementwise functions of 16-bit images are f32 values rounded once") {
    for (const DType dtype : {DType::bf16, DType::f16}) {
        const Tensor x = image(dtype, 32, 17, 12), dy = image(dtype, 32, 17, 12, 6);
        const Shape shape = x.shape();
        require_as_f32(Unary<functor::Relu>{}, {x}, {shape});
        require_as_f32(UnaryBackward<functor::Relu>{}, {dy, x}, {shape});
        require_as_f32(Binary<functor::Add>{}, {x, dy}, {shape});
        require_as_f32(Binary<functor::Div>{}, {x, dy}, {shape});
        require_as_f32(Binary<functor::Add>{}, {x, numbers({32, 1, 1}, dtype)}, {shape});
        require_as_f32(Affine{0.25, 1}, {x}, {shape});
        require_as_f32(Accumulate{}, {x, dy}, {shape});
    }
    // 1 + 2^-8 is halfway between two bf16 and rounds to the even one, 1.
    const Tensor one = Tensor::full({1, 16, 1, 1}, 1, DType::bf16, device);
    const Tensor small = Tensor::full({1, 16, 1, 1}, 1.0 / 256, DType::bf16, device);
    const Tensor sum = apply_one(Binary<functor::Add>{}, {one, small}, meta(DType::bf16, {1, 16, 1, 1}));
    CHECK(floats(sum) == Floats(16, 1.0F));
}

TEST_CASE("a bias per channel is added to images in their own layout") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor x = image(dtype, 24, 9, 7), bias = numbers({24, 1, 1}, dtype);
        const Tensor y = apply_one(Binary<functor::Add>{}, {x, bias}, meta(dtype, x.shape()));
        const Floats fx = floats(x), fbias = floats(bias), fy = floats(y);
        Floats sums(fx.size());
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = fx[i] + fbias[i / 63 % 24];
        CHECK(fy == floats(Tensor::from(sums, x.shape(), device).to(dtype)));
    }
}

TEST_CASE("max pooling of 16-bit images selects the largest value and routes gradients to it") {
    for (const DType dtype : {DType::bf16, DType::f16})
        for (const std::int64_t channels : {32, 3}) {  // blocked, plain
            const Tensor x = channels == 3 ? numbers({2, 3, 15, 18}, dtype) : image(dtype, channels, 15, 18);
            const Shape pooled{2, channels, 7, 9};
            const std::vector<Output> outputs{meta(dtype, pooled), meta(DType::u8, pooled)};
            const auto made = apply(make_operation(MaxPool2dForward{}), {x}, outputs);
            const Tensor dy = numbers(pooled, dtype);
            const Tensor dx = apply_one(MaxPool2dBackward{}, {dy, made[1]}, meta(dtype, x.shape()));
            const Floats fx = floats(x), fy = floats(made[0]), fdy = floats(dy), fdx = floats(dx);
            Floats largest(fy.size()), gradient(fx.size());
            for (std::size_t i = 0; i < fy.size(); ++i) {
                const std::size_t plane = i / 63, row = i / 9 % 7, column = i % 9;
                const std::size_t corner = plane * 15 * 18 + 2 * row * 18 + 2 * column;
                std::size_t at = corner;
                for (const std::size_t other : {corner + 1, corner + 18, corner + 19})
                    if (fx[other] > fx[at]) at = other;
                largest[i] = fx[at];
                gradient[at] = fdy[i];
            }
            CHECK(fy == largest);
            CHECK(fdx == gradient);
        }
}

TEST_CASE("linear layers and products of bf16 agree with loops in double") {
    for (const std::int64_t rows : {5, 130}) {
        INFO(rows << " rows");
        const std::int64_t in = 70, out = 37;
        const Tensor x = numbers({rows, in}, DType::bf16), w = numbers({out, in}, DType::bf16, 0.1);
        const Tensor bias = numbers({out}, DType::bf16), dy = numbers({rows, out}, DType::bf16, 0.5, 6);
        const TensorMeta like_y = meta(DType::bf16, {rows, out});
        const Tensor y = apply_one(LinearForward{}, {x, w, bias}, like_y);
        const Tensor above = apply_one(LinearForward{Activation::relu}, {x, w, bias}, like_y);
        const Tensor plain = apply_one(LinearForward{}, {x, w, Tensor()}, like_y);
        const Tensor dx = apply_one(LinearBackwardData{}, {dy, w}, meta(DType::bf16, x.shape()));
        const auto gradients = apply(make_operation(LinearBackwardWeights{}), {x, dy},
                                     {meta(DType::bf16, w.shape()), meta(DType::bf16, bias.shape())});
        const Tensor product = apply_one(MatMul{}, {x, w.transpose(0, 1)}, like_y);

        const Floats fx = floats(x), fw = floats(w), fb = floats(bias), fdy = floats(dy);
        const auto size = [](std::int64_t elements) { return static_cast<std::size_t>(elements); };
        std::vector<double> wanted_y(size(rows * out)), wanted_dx(size(rows * in)), wanted_dw(size(out * in)),
            wanted_db(size(out));
        for (std::size_t r = 0; r < size(rows); ++r)
            for (std::size_t o = 0; o < size(out); ++o) {
                wanted_db[o] += static_cast<double>(fdy[r * size(out) + o]);
                for (std::size_t i = 0; i < size(in); ++i) {
                    const double a = fx[r * size(in) + i], b = fw[o * size(in) + i], d = fdy[r * size(out) + o];
                    wanted_y[r * size(out) + o] += a * b;
                    wanted_dx[r * size(in) + i] += d * b;
                    wanted_dw[o * size(in) + i] += d * a;
                }
            }
        CHECK(relative_error(floats(plain), wanted_y) < 1.0 / 256);
        CHECK(relative_error(floats(product), wanted_y) < 1.0 / 256);
        CHECK(relative_error(floats(dx), wanted_dx) < 1.0 / 256);
        CHECK(relative_error(floats(gradients[0]), wanted_dw) < 1.0 / 256);
        CHECK(relative_error(floats(gradients[1]), wanted_db) < 1.0 / 256);
        for (std::size_t i = 0; i < wanted_y.size(); ++i) wanted_y[i] += static_cast<double>(fb[i % size(out)]);
        CHECK(relative_error(floats(y), wanted_y) < 1.0 / 256);
        for (double& value : wanted_y) value = std::max(value, 0.0);
        CHECK(relative_error(floats(above), wanted_y) < 1.0 / 256);
    }
}

TEST_CASE("kernels for 16-bit images make no f32 copies") {
    if (cpu::allowed_isa() == cpu::Isa::generic) return;
    const Shape shape{2, 32, 24, 24}, half{2, 32, 12, 12};
    const auto scratch = [&](auto op, ListRef<TensorMeta> in, ListRef<TensorMeta> out) {
        KernelRequest request;
        request.in.assign(in.begin(), in.end());
        request.out.assign(out.begin(), out.end());
        return kernel_for(op, request)->scratch_bytes();
    };
    const TensorMeta x = meta(DType::bf16, shape), y = meta(DType::bf16, half), where = meta(DType::u8, half);
    const TensorMeta stats = meta(DType::f32, {65}), sums = meta(DType::f32, {64}), none;
    CHECK(scratch(BatchNormStats{}, {x}, {stats}) == 0);
    CHECK(scratch(BatchNormNormalize{1e-5}, {x, stats, none, none}, {x}) == 0);
    CHECK(scratch(BatchNormBackwardSums{1e-5}, {x, x, stats}, {sums, none, none}) == 0);
    CHECK(scratch(BatchNormBackwardData{1e-5}, {x, x, stats, none, sums}, {x}) == 0);
    CHECK(scratch(Unary<functor::Relu>{}, {x}, {x}) == 0);
    CHECK(scratch(UnaryBackward<functor::Relu>{}, {x, x}, {x}) == 0);
    CHECK(scratch(Accumulate{}, {x, x}, {x}) == 0);
    CHECK(scratch(MaxPool2dForward{}, {x}, {y, where}) == 0);
    CHECK(scratch(MaxPool2dBackward{}, {y, where}, {x}) == 0);
}

TEST_CASE("16-bit gradients are clipped in place") {
    for (const DType dtype : {DType::bf16, DType::f16})
        for (const Device where : {Device::host(), device}) {
            const Tensor parameter = Tensor::zeros({3}, dtype, where);
            parameter.set_grad(Tensor::from(Floats{3, -4, 12}, {3}, where).to(dtype));
            CHECK(clip_grad_norm_({parameter}, {.max_norm = 6.5}).item() == 13);
            CHECK(floats(parameter.grad()) == Floats{1.5F, -2, 6});
            clip_grad_value_({parameter}, {.clip_value = 1.75});
            CHECK(floats(parameter.grad()) == Floats{1.5F, -1.75F, 1.75F});
        }
}
