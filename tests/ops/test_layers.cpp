// Layers: shapes, initial distributions, modes, running statistics, and rejected arguments.
#include "lockstep/ops/layers.h"

#include <cmath>
#include <limits>

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using test::Array;
using test::message_of;
using test::to_array;

namespace {

struct OtherNorms {
    BatchNorm1d one{2};
    BatchNorm3d three{2};
    LOCKSTEP_MEMBERS(one, three)
};

/// Mean and variance of a uniform distribution on (-bound, bound), and that its range is exactly that.
void check_uniform(const Tensor& values, double bound) {
    const Array v = to_array(values);
    double mean = 0, square = 0, largest = 0;
    for (const double x : v.v) {
        mean += x / static_cast<double>(v.size());
        square += x * x / static_cast<double>(v.size());
        largest = std::max(largest, std::abs(x));
    }
    const double deviations = 5 / std::sqrt(static_cast<double>(v.size()));
    CHECK(std::abs(mean) < deviations * bound);
    CHECK(square == Approx(bound * bound / 3).epsilon(deviations));
    CHECK(largest <= bound * 1.000001);
    CHECK(largest > bound * (1 - deviations));
}

template <class F>
std::string message_of(F f) {
    try {
        f();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "nothing was thrown";
}

}  // namespace

TEST_CASE("parameters have PyTorch's shapes and distributions") {
    manual_seed(1);
    const Linear linear{300, 200};
    CHECK(linear.weight->shape() == Shape{200, 300});
    CHECK(linear.bias->tensor().shape() == Shape{200});
    check_uniform(linear.weight, 1 / std::sqrt(300.0));
    check_uniform(*linear.bias, 1 / std::sqrt(300.0));
    const Conv2d conv{16, 64, {3, 5}};
    CHECK(conv.weight->shape() == Shape{64, 16, 3, 5});
    check_uniform(conv.weight, 1 / std::sqrt(16.0 * 15));
    check_uniform(*conv.bias, 1 / std::sqrt(16.0 * 15));
    CHECK_FALSE(Conv2d(1, 2, 3, {.bias = false}).bias.has_value());
    CHECK_FALSE(Linear(1, 2, false).bias.has_value());
    const Conv2d grouped{32, 64, {3, 5}, {.groups = 2}};
    CHECK(grouped.weight->shape() == Shape{64, 16, 3, 5});
    check_uniform(grouped.weight, 1 / std::sqrt(16.0 * 15));
    check_uniform(*grouped.bias, 1 / std::sqrt(16.0 * 15));
    const Conv1d sequence{48, 96, 9, {.groups = 3}};
    CHECK(sequence.weight->shape() == Shape{96, 16, 9});
    check_uniform(sequence.weight, 1 / std::sqrt(16.0 * 9));
    check_uniform(*sequence.bias, 1 / std::sqrt(16.0 * 9));
    const ConvTranspose2d up{64, 48, {3, 5}, {.groups = 4}};
    CHECK(up.weight->shape() == Shape{64, 12, 3, 5});
    CHECK(up.bias->tensor().shape() == Shape{48});
    check_uniform(up.weight, 1 / std::sqrt(12.0 * 15));
    check_uniform(*up.bias, 1 / std::sqrt(12.0 * 15));
}

TEST_CASE("the seed determines the initial values, drawn in order from the weight") {
    manual_seed(9);
    const Linear a{5, 7};
    manual_seed(9);
    const Linear b{5, 7};
    CHECK(a.weight->to_vector<float>() == b.weight->to_vector<float>());
    CHECK(a.bias->tensor().to_vector<float>() == b.bias->tensor().to_vector<float>());
    manual_seed(9);
    std::vector<float> drawn(35);
    const float bound = static_cast<float>(1 / std::sqrt(5.0));
    host_uniform(drawn.data(), 35, -bound, bound);
    CHECK(a.weight->to_vector<float>() == drawn);
    const Linear c{5, 7};
    CHECK(a.weight->to_vector<float>() != c.weight->to_vector<float>());
}

TEST_CASE("Embedding: rows ~ N(0, 1), a padding row of 0 without a gradient, checked arguments") {
    manual_seed(7);
    const Tensor drawn = Tensor::randn({5, 3});
    manual_seed(7);
    const Embedding table(5, 3);
    CHECK(table.weight->to_vector<float>() == drawn.to_vector<float>());
    CHECK_FALSE(table.padding_idx.has_value());
    const Tensor input = Tensor::from(std::vector<std::int64_t>{1, 4, 4, 0}, {2, 2});
    CHECK(table(input).shape() == Shape{2, 2, 3});

    for (const std::int64_t padding : {4, -1}) {
        Embedding padded(5, 3, {.padding_idx = padding});
        CHECK(padded.weight->select(0, 4).to_vector<float>() == std::vector<float>(3, 0));
        padded(input).backward(Tensor::full({2, 2, 3}, 1));
        CHECK(padded.weight->grad().to_vector<float>() ==
              std::vector<float>{1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    }
    CHECK_THROWS_AS(Embedding(0, 3), InvalidArgument);
    CHECK_THROWS_AS(Embedding(5, 0), InvalidArgument);
    CHECK(message_of<InvalidArgument>([] { Embedding(5, 3, {.padding_idx = 5}); }) ==
          "Embedding: padding_idx is 5 for 5 embeddings; expected -5 to 4");
    CHECK(message_of<InvalidArgument>([&] {
              embedding(input, Tensor::zeros({5, 3}), -6);
          }) == "embedding: padding_idx is -6 for 5 embeddings; expected -5 to 4");
}

TEST_CASE("layer norm has PyTorch's parameters and accepts an empty batch") {
    LayerNorm norm{{3, 5}};
    std::vector<std::string> names;
    for (const NamedTensor& named : named_tensors(norm)) names.push_back(named.name);
    CHECK(names == std::vector<std::string>{"weight", "bias"});
    CHECK(norm.weight->tensor().to_vector<float>() == std::vector<float>(15, 1));
    CHECK(norm.bias->tensor().to_vector<float>() == std::vector<float>(15, 0));
    CHECK(norm.eps == 1e-5);
    CHECK_FALSE(LayerNorm(5, {.bias = false}).bias.has_value());
    CHECK(LayerNorm(5, {.bias = false}).weight.has_value());
    CHECK_FALSE(LayerNorm(5, {.elementwise_affine = false}).weight.has_value());
    const Tensor x = Tensor::randn({4, 3, 5});
    CHECK(norm(x).to_vector<float>() == layer_norm(x, {3, 5}).to_vector<float>());
    const Tensor nothing = Tensor::zeros({0, 3, 5}).requires_grad_();
    norm(nothing).backward(Tensor::zeros({0, 3, 5}));
    CHECK(nothing.grad().shape() == Shape{0, 3, 5});
    CHECK(norm.weight->tensor().grad().to_vector<float>() == std::vector<float>(15, 0));
    CHECK(norm.bias->tensor().grad().to_vector<float>() == std::vector<float>(15, 0));
    CHECK_THROWS_AS(LayerNorm(0), InvalidArgument);
    CHECK_THROWS_AS(LayerNorm(Shape{}), InvalidArgument);
    CHECK_THROWS_AS(LayerNorm(3, {.eps = -1}), InvalidArgument);
    CHECK(message_of([&] { layer_norm(x, {3}); }) ==
          "layer_norm: normalized_shape (3,) does not match input (4, 3, 5); expected its last dimensions");
    CHECK(message_of([&] { layer_norm(x, {5}, Tensor::zeros({3})); }) ==
          "layer_norm: weight has shape (3,); expected normalized_shape (5,)");
    CHECK(message_of([&] { layer_norm(x, {5}, {}, {}, -1); }) == "layer_norm: invalid eps (-1); expected 0 or more");
}

TEST_CASE("transposed convolutions have PyTorch's weights and sizes") {
    manual_seed(4);
    const ConvTranspose2d up{16, 64, {3, 5}, {.stride = 2, .padding = 1, .output_padding = {1, 0}}};
    CHECK(up.weight->shape() == Shape{16, 64, 3, 5});
    CHECK(up.bias->tensor().shape() == Shape{64});
    check_uniform(up.weight, 1 / std::sqrt(64.0 * 15));
    check_uniform(*up.bias, 1 / std::sqrt(64.0 * 15));
    CHECK_FALSE(ConvTranspose2d(1, 2, 3, {.bias = false}).bias.has_value());
    const Tensor x = Tensor::randn({2, 16, 4, 5});
    CHECK(up(x).shape() == Shape{2, 64, 8, 11});
    CHECK(up(x).to_vector<float>() == conv_transpose2d(x, up.weight, *up.bias, 2, 1, {1, 0}).to_vector<float>());
    // A batch without rows.
    const Tensor nothing = Tensor::zeros({0, 16, 4, 5}).requires_grad_();
    const Tensor y = up(nothing);
    CHECK(y.shape() == Shape{0, 64, 8, 11});
    y.backward(Tensor::zeros(y.shape()));
    CHECK(up.weight->grad().to_vector<float>() == std::vector<float>(16 * 64 * 15, 0));
    CHECK_THROWS_AS(ConvTranspose2d(0, 2, 3), InvalidArgument);
    CHECK_THROWS_AS(ConvTranspose2d(1, 2, 3, {.stride = 0}), InvalidArgument);
    CHECK_THROWS_AS(ConvTranspose2d(1, 2, 3, {.output_padding = -1}), InvalidArgument);
    const Tensor w = Tensor::zeros({16, 3, 2, 2});
    CHECK(message_of([&] {
              conv_transpose2d(Tensor::zeros({1, 3, 2, 2}), w);
          }) == "conv_transpose2d: input (1, 3, 2, 2) has 3 channels; weight (16, 3, 2, 2) expects 16");
    CHECK(message_of([&] { conv_transpose2d(x, w, {}, 2, 0, 2); }) ==
          "conv_transpose2d: invalid output_padding (2, 2); expected 0 or more, and less than stride (2, 2) or "
          "dilation (1, 1)");
    CHECK(message_of([&] { conv_transpose2d(x, w, Tensor::zeros({16})); }) ==
          "conv_transpose2d: bias has shape (16,); expected (3,), one for each output channel");
    CHECK(message_of([&] { conv_transpose2d(x, w, {}, 1, 3); }) ==
          "conv_transpose2d: the output of input (2, 16, 4, 5) with weight (16, 3, 2, 2) and padding (3, 3) is empty; "
          "expected less padding");
    CHECK(message_of([&] { conv_transpose2d(x, w, {}, 0); }) ==
          "conv_transpose2d: invalid stride (0, 0) or padding (0, 0); expected a positive stride and padding of 0 or "
          "more");
}

TEST_CASE("layers are equivalent to their functions") {
    const Tensor x = Tensor::randn({3, 4, 9, 8});
    const Conv2d conv{4, 6, 3, {.stride = {2, 1}, .padding = 1}};
    CHECK(conv(x).to_vector<float>() == conv2d(x, conv.weight, *conv.bias, {2, 1}, 1).to_vector<float>());
    CHECK(conv(x).shape() == Shape{3, 6, 5, 8});
    const Conv2d wide{4, 6, 3, {.padding = 2, .dilation = {1, 2}, .groups = 2}};
    CHECK(wide(x).to_vector<float>() == conv2d(x, wide.weight, *wide.bias, 1, 2, {1, 2}, 2).to_vector<float>());
    CHECK(wide(x).shape() == Shape{3, 6, 11, 8});
    const Conv1d sequence{4, 8, 3, {.stride = 2, .padding = 1, .dilation = 3, .groups = 4}};
    const Tensor sequences = x.flatten(2);
    CHECK(sequence(sequences).to_vector<float>() ==
          conv1d(sequences, sequence.weight, *sequence.bias, 2, 1, 3, 4).to_vector<float>());
    CHECK(sequence(sequences).shape() == Shape{3, 8, 34});
    const ConvTranspose2d up{4, 6, 3, {.stride = 2, .output_padding = 1, .groups = 2, .dilation = {2, 1}}};
    CHECK(up(x).to_vector<float>() == conv_transpose2d(x, up.weight, *up.bias, 2, 0, 1, 2, {2, 1}).to_vector<float>());
    CHECK(up(x).shape() == Shape{3, 6, 22, 18});
    CHECK(MaxPool2d(2)(x).to_vector<float>() == max_pool2d(x, 2).to_vector<float>());
    CHECK(MaxPool2d(3, 2, 1)(x).shape() == Shape{3, 4, 5, 4});
    CHECK(ReLU()(x).to_vector<float>() == relu(x).to_vector<float>());
    CHECK(Flatten()(x).shape() == Shape{3, 288});
    CHECK(LogSoftmax(1)(x).to_vector<float>() == log_softmax(x, 1).to_vector<float>());
    Dropout drop{0.5};
    CHECK(drop(x).to_vector<float>() != x.to_vector<float>());
    drop.training = false;
    CHECK(drop(x).to_vector<float>() == x.to_vector<float>());
    Sequential net{Conv2d{4, 2, 3}, ReLU{}, Flatten{}, Linear{84, 5}, LogSoftmax{1}};
    CHECK(net(x).shape() == Shape{3, 5});
}

TEST_CASE("running statistics follow the update rule") {
    constexpr double momentum = 0.3;
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        for (const BatchNormStatistics statistics : {BatchNormStatistics::all_shards, BatchNormStatistics::shard0}) {
            BatchNorm2d norm{3, {.momentum = momentum, .statistics = statistics}};
            for (const NamedTensor& named : named_tensors(norm)) {
                const Tensor moved = named.member->tensor().detach().to(device);
                named.member->rebind(moved.requires_grad_(named.is_parameter));
            }
            std::vector<double> mean(3, 0), variance(3, 1);
            for (std::uint32_t step = 0; step < 3; ++step) {
                const test::Input input{{4, 3, 5, 3}};
                const Array values = test::make_values(input, step);
                const Tensor x = test::to_tensor(values, input, DType::f32, device);
                norm(x);
                const reference::ChannelStats stats = reference::channel_stats(values);
                for (std::size_t c = 0; c < 3; ++c) {
                    mean[c] = (1 - momentum) * mean[c] + momentum * stats.mean[c];
                    variance[c] = (1 - momentum) * variance[c] + momentum * stats.variance[c] * 60 / 59;
                }
            }
            const Array running_mean = to_array(*norm.running_mean), running_var = to_array(*norm.running_var);
            for (std::size_t c = 0; c < 3; ++c) {
                CHECK(running_mean.v[c] == Approx(mean[c]).margin(1e-6));
                CHECK(running_var.v[c] == Approx(variance[c]));
            }
            CHECK(norm.num_batches_tracked->tensor().item() == 3);
            set_training(norm, false);
            norm(Tensor::randn({1, 3, 1, 1}).to(device));
            CHECK(norm.num_batches_tracked->tensor().item() == 3);
            CHECK(to_array(*norm.running_mean).v == running_mean.v);
        }
    }
}

TEST_CASE("a single value per channel is rejected before anything changes") {
    const BatchNorm2d norm{3};
    const std::string message = message_of([&] { norm(Tensor::randn({1, 3, 1, 1})); });
    CHECK(message ==
          "batch_norm: input (1, 3, 1, 1) has at most one value per channel; expected more rows per shard in training");
    CHECK(norm.num_batches_tracked->tensor().item() == 0);
    CHECK(to_array(*norm.running_mean).v == std::vector<double>(3, 0));
    const BatchNorm2d untracked{3, {.affine = false, .track_running_stats = false}};
    CHECK_FALSE(untracked.running_mean.has_value());
    CHECK_FALSE(untracked.weight.has_value());
}

TEST_CASE("constructors reject invalid attributes") {
    CHECK_THROWS_AS(Linear(0, 3), InvalidArgument);
    CHECK_THROWS_AS(Linear(3, -1), InvalidArgument);
    CHECK_THROWS_AS(Conv2d(0, 1, 3), InvalidArgument);
    CHECK_THROWS_AS(Conv2d(1, 1, 0), InvalidArgument);
    CHECK_THROWS_AS(Conv2d(1, 1, 3, {.stride = 0}), InvalidArgument);
    CHECK_THROWS_AS(Conv2d(1, 1, 3, {.padding = -1}), InvalidArgument);
    CHECK_THROWS_AS(Conv2d(1, 1, 3, {.dilation = 0}), InvalidArgument);
    CHECK_THROWS_AS(Conv2d(2, 2, 3, {.groups = 0}), InvalidArgument);
    CHECK(message_of([] { Conv2d(6, 4, 3, {.groups = 4}); }) ==
          "Conv2d: invalid in_channels (6); expected a multiple of groups (4)");
    CHECK(message_of([] { Conv2d(4, 6, 3, {.groups = 4}); }) ==
          "Conv2d: invalid out_channels (6); expected a multiple of groups (4)");
    CHECK_THROWS_AS(Conv1d(1, 1, 3, {.dilation = 0}), InvalidArgument);
    CHECK_THROWS_AS(Conv1d(4, 6, 3, {.groups = 4}), InvalidArgument);
    CHECK_THROWS_AS(ConvTranspose2d(1, 1, 3, {.dilation = -1}), InvalidArgument);
    CHECK_THROWS_AS(ConvTranspose2d(6, 4, 3, {.groups = 4}), InvalidArgument);
    CHECK_THROWS_AS(BatchNorm2d(0), InvalidArgument);
    CHECK_THROWS_AS(BatchNorm2d(2, {.eps = 0}), InvalidArgument);
    CHECK_THROWS_AS(BatchNorm2d(2, {.momentum = 2}), InvalidArgument);
    CHECK_THROWS_AS(Dropout(1.5), InvalidArgument);
    CHECK_THROWS_AS(Dropout(std::nan("")), InvalidArgument);
    CHECK_THROWS_AS(Dropout2d(-0.1), InvalidArgument);
    CHECK_THROWS_AS(MaxPool2d(0), InvalidArgument);
}

TEST_CASE("rms_norm: eps defaults to the precision of the input's dtype, as in PyTorch") {
    const std::pair<DType, double> epsilons[] = {
        {DType::f16, 0x1p-10}, {DType::bf16, 0x1p-7}, {DType::f32, 0x1p-23}, {DType::f64, 0x1p-52}};
    for (const auto& [dtype, eps] : epsilons) {
        CAPTURE(name_of(dtype));
        const Tensor x = Tensor::full({1, 4}, 0x1p-10, dtype);
        const double expected = 0x1p-10 / std::sqrt(0x1p-20 + eps);
        CHECK(to_array(rms_norm(x, {4}))[0] == Approx(expected).epsilon(0.005));
    }
}

TEST_CASE("batch norm of other shapes: messages have the given shape, and sync conversion reaches all kinds") {
    CHECK(message_of([] {
              batch_norm(Tensor::zeros({1, 3}), {}, {}, {}, {}, {.training = true});
          }) == "batch_norm: input (1, 3) has at most one value per channel; expected more rows per shard in training");
    OtherNorms net;
    convert_sync_batchnorm(net);
    CHECK(net.one.options.statistics == BatchNormStatistics::synchronized);
    CHECK(net.three.options.statistics == BatchNormStatistics::synchronized);
}

TEST_CASE("einsum: the order of letters, and equations that are refused") {
    // Whole numbers, whose sums are exact in any order.
    const Tensor a = Tensor::linspace(-2, 3, 6).reshape({2, 3}), b = Tensor::linspace(1, 12, 12).reshape({3, 4});
    CHECK(einsum("jk,ij->ik", {b, a}).to_vector<float>() == matmul(a, b).to_vector<float>());
    CHECK(einsum(" b a ", {a}).to_vector<float>() == permute(a, {1, 0}).contiguous().to_vector<float>());
    CHECK(einsum("ij->", {a}).shape() == Shape{});
    const auto said = [&](const std::string& equation) { return message_of([&] { einsum(equation, {a, b}); }); };
    CHECK(said("ij,jk,kl->il") ==
          "einsum: invalid equation \"ij,jk,kl->il\": it has 3 operands; expected 2, as many as tensors");
    CHECK(said("ij,jk->im") == "einsum: invalid equation \"ij,jk->im\": the letter m of the result is in no operand");
    CHECK(said("ij,kj->ik") == "einsum: invalid equation \"ij,kj->ik\": the letter j has the sizes 3 and 4");
    CHECK(said("ii,jk->k") ==
          "einsum: invalid equation \"ii,jk->k\": the letter i is twice in one list; expected different letters "
          "(diagonals are not supported)");
    CHECK(said("i...,jk") ==
          "einsum: invalid equation \"i...,jk\": unexpected \".\"; expected letters, commas and one \"->\"");
    CHECK(said("i,jk") == "einsum: invalid equation \"i,jk\": operand 0 has 1 letters for a tensor of shape (2, 3)");
}

TEST_CASE("invalid groups and dilations are rejected with an error that names them") {
    const Tensor x = Tensor::randn({2, 4, 8, 8}), w = Tensor::randn({6, 2, 3, 3});
    CHECK(message_of([&] { conv2d(x, w); }) ==
          "conv2d: input (2, 4, 8, 8) has 4 channels; weight (6, 2, 3, 3) expects 2");
    CHECK(message_of([&] { conv2d(x, w, {}, 1, 0, 1, 4); }) ==
          "conv2d: input (2, 4, 8, 8) has 4 channels; weight (6, 2, 3, 3) expects 2 in each of 4 groups");
    CHECK(message_of([&] { conv2d(x, w.slice(0, 0, 5), {}, 1, 0, 1, 2); }) ==
          "conv2d: dimension 0 of weight (5, 2, 3, 3) is not a multiple of groups (2); expected equal groups");
    CHECK(message_of([&] { conv2d(x, w, {}, 1, 0, 1, -2); }) ==
          "conv2d: invalid groups (-2); expected a positive number");
    CHECK(message_of([&] {
              conv2d(x, w, {}, 1, 0, {1, 0}, 2);
          }) == "conv2d: invalid dilation (1, 0); expected positive numbers");
    CHECK(message_of([&] {
              conv2d(x, w, {}, 1, 0, {4, 1}, 2);
          }) ==
          "conv2d: weight (6, 2, 3, 3) does not fit in input (2, 4, 8, 8) with padding (0, 0) and dilation (4, 1); "
          "expected a window within the padded input");
    CHECK(conv2d(x, w, {}, 1, 1, {4, 1}, 2).shape() == Shape{2, 6, 2, 8});
    const Tensor up = Tensor::randn({4, 3, 3, 3});
    CHECK(message_of([&] { conv_transpose2d(x, up, Tensor::zeros({3}), 1, 0, 0, 2); }) ==
          "conv_transpose2d: bias has shape (3,); expected (6,), one for each output channel");
    CHECK(message_of([&] { conv_transpose2d(x, up, {}, 1, 0, 0, 3); }) ==
          "conv_transpose2d: input (2, 4, 8, 8) has 4 channels; weight (4, 3, 3, 3) expects 1 in each of 3 groups");
    CHECK(message_of([&] { conv_transpose2d(x, up, {}, 1, 0, 0, 0); }) ==
          "conv_transpose2d: invalid groups (0); expected a positive number");
}

TEST_CASE("groups and dilation of a layer are part of the key of programs") {
    const auto check = [](auto layer) {
        const auto key = [&] {
            Signature signature;
            layer.describe(signature);
            return signature.bytes();
        };
        const std::string before = key();
        layer.dilation = 2;
        const std::string dilated = key();
        layer.groups = 2;
        CHECK(dilated != before);
        CHECK(key() != dilated);
        CHECK(key() != before);
    };
    check(Conv2d{2, 2, 3});
    check(Conv1d{2, 2, 3});
    check(ConvTranspose2d{2, 2, 3});
}

TEST_CASE("grouped and dilated convolutions of a batch without rows have gradients of zero") {
    for (const std::int64_t groups : {2, 4}) {
        const Tensor x = Tensor::zeros({0, 4, 6, 6}).requires_grad_();
        const Tensor w = Tensor::randn({8, 4 / groups, 3, 3}).requires_grad_(), bias = Tensor::randn({8});
        const Tensor y = conv2d(x, w, bias, 1, 1, 2, groups);
        CHECK(y.shape() == Shape{0, 8, 4, 4});
        y.backward(Tensor::zeros(y.shape()));
        CHECK(w.grad().to_vector<float>() == std::vector<float>(static_cast<std::size_t>(w.numel()), 0));
        CHECK(x.grad().shape() == x.shape());
    }
}

TEST_CASE("mismatched shapes are rejected with an error that names both") {
    const Tensor x = Tensor::randn({64, 3, 28, 28});
    CHECK(message_of([&] {
              conv2d(x, Tensor::randn({32, 1, 3, 3}));
          }) == "conv2d: input (64, 3, 28, 28) has 3 channels; weight (32, 1, 3, 3) expects 1");
    CHECK(message_of([&] {
              linear(x, Tensor::randn({5, 7}));
          }) == "linear: input (64, 3, 28, 28) has 28 features; weight (5, 7) expects 7, as in Linear(features, ...)");
    const auto refused = [](auto f) { CHECK_THROWS_AS(f(), InvalidArgument); };
    const Tensor small = Tensor::randn({2, 3, 4, 4}), w = Tensor::randn({5, 3, 3, 3}), m = Tensor::randn({3, 4});
    refused([&] { conv2d(Tensor::randn({3, 4, 4}), w); });
    refused([&] { conv2d(small, w, Tensor::randn({4})); });
    refused([&] { conv2d(small, Tensor::randn({5, 3, 5, 5})); });
    refused([&] { conv2d(small, w, {}, 0); });
    refused([&] { conv2d(small, w, {}, 1, -1); });
    refused([&] { conv2d(small, w, {}, 1, 0, 1, 3); });
    refused([&] { conv2d(small, w, {}, 1, 0, 1, std::numeric_limits<std::int64_t>::max()); });
    refused([&] { conv1d(small.flatten(2), w.flatten(2), {}, 1, 0, 0); });
    refused([&] { conv2d(small, w.to(DType::f64)); });
    refused([&] { conv2d(small, Tensor()); });
    refused([&] { conv2d(small.to(DType::i64), w); });
    refused([&] { conv2d(small.to(Device::cpu(0)), w); });
    refused([&] { max_pool2d(small, 5); });
    refused([&] { max_pool2d(small, 2, 0); });
    refused([&] { max_pool2d(small, 2, 2, 2); });
    refused([&] { max_pool2d(small, 16, 1, 8); });
    refused([&] { max_pool2d(m, 2); });
    refused([&] { linear(Tensor::scalar(1), m); });
    refused([&] { linear(m, small); });
    refused([&] { linear(m, Tensor::randn({5, 4}), Tensor::randn({4})); });
    refused([&] { matmul(m, m); });
    refused([&] { matmul(m, Tensor::randn({5})); });
    refused([&] { matmul(m, Tensor::scalar(1)); });
    refused([&] { matmul(Tensor::randn({2, 3, 4, 4}), Tensor::randn({2, 4, 4})); });
    refused([&] { matmul(Tensor::randn({2, 3, 4}), Tensor::randn({3, 4, 2})); });
    refused([&] { add(m, Tensor::randn({4, 3})); });
    refused([&] { add(m, Tensor()); });
    refused([&] { sub(m, m.to(DType::boolean)); });
    refused([&] { sum(m, 2); });
    refused([&] { sum(m, {0, -2}); });
    refused([&] { argmax(m, -3); });
    refused([&] { argmax(Tensor::zeros({0, 3}), 0); });
    refused([&] { cat({}); });
    refused([&] { cat({m, Tensor::randn({3, 5})}); });
    refused([&] { cat({m, Tensor::randn({3})}); });
    refused([&] { cat({m, m}, 2); });
    refused([&] { cat({Tensor::scalar(1)}); });
    refused([&] { log_softmax(m, 2); });
    refused([&] { dropout(m, -0.5); });
    refused([&] { dropout(m, 1.5, false); });
    refused([&] { dropout2d(Tensor::randn({3})); });
    refused([&] { batch_norm(Tensor::randn({3}), {}, {}, {}, {}, {.training = true}); });
    refused([&] { BatchNorm2d(4)(m); });
    refused([&] { BatchNorm1d(3)(small); });
    refused([&] { BatchNorm3d(3)(small); });
    refused([&] { group_norm(small, 2); });
    refused([&] { instance_norm(m); });
    refused([&] { rms_norm(m, {3}); });
    refused([&] { prelu(m, Tensor::randn({3})); });
    refused([&] { glu(m, 0); });
    refused([&] { avg_pool2d(small, 5); });
    refused([&] { avg_pool2d(small, 3, 1, 2); });
    refused([&] { adaptive_avg_pool2d(small, 0); });
    refused([&] { conv1d(small, w); });
    refused([&] { softplus(m, 0); });
    refused([&] { hardtanh(m, 1, 0); });
    refused([&] { l1_loss(m, small); });
    refused([&] { BceLoss{{.weight = Tensor::full({3, 4}, 1)}}(m, m); });
    refused([&] { BceLoss{{.weight = Tensor::full({4}, 1).requires_grad_()}}(m, m); });
    refused([&] { cosine_embedding_loss(m, m, m); });
    refused([&] { kl_div(Tensor::scalar(1), m); });
    refused([&] { CrossEntropyLoss{{.label_smoothing = 2}}(m, Tensor::zeros({3}, DType::i64)); });
    refused([&] { batch_norm(small, Tensor::zeros({3}), {}); });
    refused([&] { batch_norm(small, Tensor::zeros({2}), Tensor::zeros({2})); });
    refused([&] { batch_norm(small, {}, {}, Tensor::zeros({4})); });
    refused([&] { sum_over_shards(std::vector<Tensor>{}); });
    refused([&] { relu(Tensor()); });
}

TEST_CASE("a network of layers learns") {
    manual_seed(2);
    Sequential net{Linear{2, 16}, ReLU{}, Linear{16, 2}};
    const Tensor x = Tensor::randn({64, 2});
    const auto points = x.to_vector<float>();
    std::vector<std::int64_t> labels;
    for (std::size_t i = 0; i < points.size(); i += 2) labels.push_back(points[i] * points[i + 1] > 0);
    const Tensor target = Tensor::from(labels, {64});
    const double before = cross_entropy(net(x), target).item();
    for (int step = 0; step < 300; ++step) {
        cross_entropy(net(x), target).backward();
        const NoGrad no_grad;
        for (const NamedTensor& named : named_tensors(net)) {
            const Tensor& parameter = named.member->tensor();
            parameter.copy_(parameter - parameter.grad() * 0.5);
            parameter.set_grad({});
        }
    }
    CHECK(cross_entropy(net(x), target).item() < 0.3 * before);
}
