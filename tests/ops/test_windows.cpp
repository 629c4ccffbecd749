// Padding, windows and their layers: values of other dtypes, special values, refused arguments, and use within a step.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/ops/window_layers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::message_of;

namespace {

using Numbers = std::vector<std::int64_t>;

/// Padding and windows around a layer with weights.
struct Padded {
    ReflectionPad2d mirror{{1, 0, 2, 1}};
    Conv2d conv{2, 3, 3, {.stride = 2, .padding = 1, .padding_mode = PaddingMode::circular}};
    Unfold windows{2};
    Fold images{{3, 3}, 2};
    Linear fc{27, 2};
    LOCKSTEP_MEMBERS(mirror, conv, windows, images, fc)
    Tensor forward(const Tensor& x) { return fc(flatten(images(windows(conv(mirror(x)))), 1)); }
};

/// Weights after three steps on `devices` devices.
std::vector<float> trained(int devices) {
    manual_seed(7);
    Padded net;
    std::vector<Device> list;
    for (int i = 0; i < devices; ++i) list.push_back(Device::cpu(i));
    DataParallel<Padded> model(net, list, {.shards = 4});
    SGD sgd(model, {.lr = 0.05});
    const CrossEntropyLoss loss;
    for (int step = 0; step < 3; ++step) {
        const Tensor x = Tensor::randn({8, 2, 3, 5});
        model.step(sgd, x, Tensor::from(Numbers{0, 1, 1, 0, 1, 0, 0, 1}, {8}), loss);
    }
    return model->conv.weight->to_vector<float>();
}

}  // namespace

TEST_CASE("padding modes copy elements of any dtype, and NaN as it is") {
    const Tensor row = Tensor::from(Numbers{1, 2, 3}, {3});
    CHECK(pad(row, {2, 1}, PaddingMode::reflect).to_vector<std::int64_t>() == Numbers{3, 2, 1, 2, 3, 2});
    CHECK(pad(row, {2, 1}, PaddingMode::replicate).to_vector<std::int64_t>() == Numbers{1, 1, 1, 2, 3, 3});
    CHECK(pad(row, {2, 3}, PaddingMode::circular).to_vector<std::int64_t>() == Numbers{2, 3, 1, 2, 3, 1, 2, 3});
    CHECK(pad(row, {1, 1}, PaddingMode::zeros).to_vector<std::int64_t>() == Numbers{0, 1, 2, 3, 0});
    CHECK(pad(row, {-1, 1}, PaddingMode::circular).to_vector<std::int64_t>() == Numbers{2, 3, 1});
    CHECK(pad(row, {}, PaddingMode::reflect).to_vector<std::int64_t>() == Numbers{1, 2, 3});
    const auto special = pad(Tensor::from(std::vector<float>{NAN, 0.0f, INFINITY}, {3}), {1, 1}, PaddingMode::circular);
    const std::vector<float> values = special.to_vector<float>();
    CHECK((std::isinf(values[0]) && std::isnan(values[1]) && values[2] == 0 && std::isnan(values[4])));
}

TEST_CASE("windows take any dtype, and NaN stays in the windows that have it") {
    const Tensor x = Tensor::from(Numbers{1, 2, 3, 4, 5, 6}, {1, 1, 2, 3});
    CHECK(unfold(x, 2).to_vector<std::int64_t>() == Numbers{1, 2, 2, 3, 4, 5, 5, 6});
    CHECK(unfold(x, {1, 3}, 1, {0, 1}, 2).to_vector<std::int64_t>() == Numbers{0, 2, 1, 3, 2, 0});
    std::vector<float> columns(12, 1.0f);
    columns[0] = NAN;  // element (0, 0) of the window at the top left
    const std::vector<float> folded = fold(Tensor::from(columns, {1, 4, 3}), {2, 4}, 2).to_vector<float>();
    CHECK(std::isnan(folded[0]));
    CHECK(std::vector<float>(folded.begin() + 1, folded.end()) == std::vector<float>{2, 2, 1, 1, 2, 2, 1});
    CHECK(unfold(Tensor::zeros({0, 2, 4, 4}), 2).shape() == Shape{0, 8, 9});
    CHECK(fold(Tensor::zeros({0, 8, 9}), 4, 2).shape() == Shape{0, 2, 4, 4});
}

TEST_CASE("integers and bool are concatenated") {
    const Tensor a = Tensor::from(Numbers{1, 2}, {1, 2}), b = Tensor::from(Numbers{3, 4}, {1, 2});
    CHECK(cat({a, b}, 1).to_vector<std::int64_t>() == Numbers{1, 2, 3, 4});
    CHECK(stack({a, b}, 2).to_vector<std::int64_t>() == Numbers{1, 3, 2, 4});
    for (const DType dtype : {DType::i32, DType::u8, DType::boolean}) {
        CAPTURE(name_of(dtype));
        const Tensor both = cat({a.to(dtype), b.to(dtype).transpose(0, 1).reshape({1, 2})}, 0);
        CHECK(both.dtype() == dtype);
        CHECK(both.to(DType::i64).to_vector<std::int64_t>() ==
              (dtype == DType::boolean ? Numbers{1, 1, 1, 1} : Numbers{1, 2, 3, 4}));
    }
}

TEST_CASE("padding and windows that do not fit are refused") {
    const Tensor x = Tensor::zeros({1, 2, 3, 4});
    const auto refused = [](const auto& call) { return message_of<InvalidArgument>(call); };
    CHECK(refused([&] {
              pad(x, {4, 0}, PaddingMode::reflect);
          }) == "pad: invalid padding (4) of dimension 3 of (1, 2, 3, 4); expected at most 3");
    CHECK(refused([&] {
              pad(x, {0, 0, 0, 4}, PaddingMode::circular);
          }) == "pad: invalid padding (4) of dimension 2 of (1, 2, 3, 4); expected at most 3");
    CHECK(refused([&] {
              pad(Tensor::zeros({1, 0}), {1, 0}, PaddingMode::replicate);
          }) == "pad: invalid padding (1) of dimension 1 of (1, 0); expected at most 0");
    CHECK(refused([&] {
              pad(x, {std::int64_t{1} << 50, 0}, PaddingMode::replicate);
          }) == "pad: invalid padding (1125899906842624) of dimension 3 of (1, 2, 3, 4); expected at most 16777216");
    CHECK(refused([&] {
              pad(x, {-3, -2}, PaddingMode::replicate);
          }) == "pad: paddings -3 and -2 crop dimension 3 of (1, 2, 3, 4); expected a size of 0 or more");
    CHECK(
        refused([&] {
            pad(x, {1, 1, 1}, PaddingMode::reflect);
        }) ==
        "pad: 3 numbers for input (1, 2, 3, 4); expected two per dimension, before and after, from the last dimension "
        "on");
    CHECK(refused([&] {
              unfold(x, {4, 1});
          }) ==
          "unfold: a window of 4 elements is larger than the height (3 with padding); expected at least one window");
    CHECK(refused([&] {
              unfold(x, {1, 3}, {1, 2});
          }) ==
          "unfold: a window of 5 elements is larger than the width (4 with padding); expected at least one window");
    CHECK(refused([&] { unfold(x, 2, 1, 0, 0); }) == "unfold: invalid stride (0); expected at least 1");
    CHECK(refused([&] { unfold(x, 2, 1, -1); }) == "unfold: invalid padding (-1); expected at least 0");
    CHECK(refused([&] {
              fold(Tensor::zeros({1, 8, 5}), {3, 3}, 2);
          }) ==
          "fold: input (1, 8, 5) does not fit; expected dimension 1 a multiple of 4, the elements of a window, and "
          "dimension 2 of size 4, the number of windows");
    CHECK(refused([&] {
              fold(Tensor::zeros({1, 6, 4}), {3, 3}, 2);
          }) ==
          "fold: input (1, 6, 4) does not fit; expected dimension 1 a multiple of 4, the elements of a window, and "
          "dimension 2 of size 4, the number of windows");
    CHECK_THROWS_AS(unfold(Tensor::zeros({2, 3, 4}), 2), InvalidArgument);
    CHECK_THROWS_AS(fold(Tensor::zeros({1, 4, 4}, DType::i64), 3, 2), InvalidArgument);
}

TEST_CASE("a convolution pads by its padding mode") {
    const Tensor x = Tensor::randn({2, 2, 4, 5}), line = Tensor::randn({2, 2, 6});
    for (const PaddingMode mode :
         {PaddingMode::zeros, PaddingMode::reflect, PaddingMode::replicate, PaddingMode::circular}) {
        const Conv2d conv(2, 3, {3, 5}, {.stride = 2, .padding = {1, 2}, .padding_mode = mode});
        const Tensor wide = pad(x, {2, 2, 1, 1}, mode);
        CHECK(conv(x).to_vector<float>() == conv2d(wide, conv.weight, *conv.bias, 2).to_vector<float>());
        const Conv1d along(2, 3, 3, {.padding = 2, .padding_mode = mode});
        CHECK(along(line).to_vector<float>() ==
              conv1d(pad(line, {2, 2}, mode), along.weight, *along.bias).to_vector<float>());
    }
}

TEST_CASE("padding and windows train with the same bits on any number of devices") {
    const std::vector<float> one = trained(1);
    CHECK(trained(2) == one);
    CHECK(trained(3) == one);
    CHECK(trained(4) == one);
}
