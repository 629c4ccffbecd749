// Arguments of functions: integers and numbers next to tensors, indices, and what is rejected.
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/check_op.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("integers combined with integers stay integers, and become f32 where they do in PyTorch") {
    using Integers = std::vector<std::int64_t>;
    using Floats = std::vector<float>;
    for (const Device device : op_devices()) {
        INFO(device.str());
        const Tensor a = Tensor::from(Integers{7, -7}, {2}, device);
        CHECK((a * 2 - 1).to_vector<std::int64_t>() == Integers{13, -15});
        CHECK((1 - a + true).to_vector<std::int64_t>() == Integers{-5, 9});
        CHECK((a * 2.5).to_vector<float>() == Floats{17.5F, -17.5F});
        CHECK((0.5 - a).to_vector<float>() == Floats{-6.5F, 7.5F});
        CHECK((a + 1.0).to_vector<float>() == Floats{8, -6});
        CHECK((a - 0.25F).to_vector<float>() == Floats{6.75F, -7.25F});
        CHECK((a / 2).to_vector<float>() == Floats{3.5F, -3.5F});
        CHECK((14 / a).to_vector<float>() == Floats{2, -2});
        CHECK((a / Tensor::from(Integers{2}, {1}, device)).to_vector<float>() == Floats{3.5F, -3.5F});
        CHECK((a / Tensor::from(Integers{0}, {1}, device)).to_vector<float>() == Floats{INFINITY, -INFINITY});
        const Tensor bytes = Tensor::from(std::vector<std::uint8_t>{1, 255}, {2}, device);
        CHECK((bytes + 300).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{45, 43});
        const Tensor words = Tensor::from(std::vector<std::int32_t>{1, -2}, {2}, device);
        CHECK((words * (std::int64_t{1} << 31)).to_vector<std::int32_t>() == std::vector<std::int32_t>{INT32_MIN, 0});
        CHECK_THROWS_AS(gelu(a), InvalidArgument);
        CHECK_THROWS_AS(a + (std::int64_t{1} << 53), InvalidArgument);
    }
}

TEST_CASE("numbers are compared with integers and chosen for them exactly, or refused") {
    using Flags = std::vector<std::uint8_t>;
    for (const Device device : op_devices()) {
        INFO(device.str());
        const auto flags = [](const Tensor& x) { return x.to(DType::u8).to_vector<std::uint8_t>(); };
        const Tensor bytes = Tensor::from(std::vector<std::uint8_t>{0, 44, 255}, {3}, device);
        CHECK(flags(bytes < 300) == Flags{1, 1, 1});
        CHECK(flags(eq(bytes, 300)) == Flags{0, 0, 0});  // not 44
        CHECK(flags(bytes > -1) == Flags{1, 1, 1});
        CHECK(flags(bytes >= 43.5) == Flags{0, 1, 1});
        CHECK(flags(43.5 <= bytes) == flags(bytes >= 43.5));
        CHECK(flags(1 < bytes) == flags(bytes > 1));
        CHECK(flags(1 >= bytes) == flags(bytes <= 1));
        CHECK(flags(255 > bytes) == flags(bytes < 255));
        const Tensor truth = bytes > 0;
        CHECK(flags(truth < 2) == Flags{1, 1, 1});
        CHECK(flags(eq(truth, true)) == Flags{0, 1, 1});
        const std::int64_t large = (std::int64_t{1} << 53) + 1;
        const Tensor longs = Tensor::from(std::vector<std::int64_t>{large, large - 1}, {2}, device);
        CHECK(flags(eq(longs, Tensor::from(std::vector<std::int64_t>{large}, {1}, device))) == Flags{1, 0});
        CHECK_THROWS_AS(eq(longs, large), InvalidArgument);
        CHECK_THROWS_AS(masked_fill(longs, eq(longs, longs), large), InvalidArgument);
        const Tensor words = Tensor::from(std::vector<std::int32_t>{1, -2}, {2}, device);
        CHECK(flags(words < (std::int64_t{1} << 40)) == Flags{1, 1});
        CHECK_THROWS_AS(masked_fill(words, words > 0, std::int64_t{1} << 31), InvalidArgument);
        CHECK_THROWS_AS(masked_fill(bytes, truth, 256), InvalidArgument);
        CHECK_THROWS_AS(masked_fill(words, words > 0, 0.5), InvalidArgument);
        CHECK_THROWS_AS(where(words, words, words), InvalidArgument);
        CHECK(message_of<InvalidArgument>([&] { masked_fill(words, words, 1); }) ==
              "masked_fill: the mask has dtype i32; expected bool");
        CHECK(flags(lt(words, longs)) == Flags{1, 1});
        CHECK(masked_fill(words.to(DType::f32), words < 0, -INFINITY).to_vector<float>() ==
              std::vector<float>{1, -INFINITY});
    }
}

TEST_CASE("arguments of functions with indices") {
    const Tensor x = Tensor::from(std::vector<std::int64_t>{10, 11, 12, 20, 21, 22}, {2, 3});
    const auto indices = [](const std::vector<std::int64_t>& values, const Shape& shape) {
        return Tensor::from(values, shape);
    };
    using Numbers = std::vector<std::int64_t>;
    CHECK(index_select(x, 1, indices({2, 2}, {2})).to_vector<std::int64_t>() == Numbers{12, 12, 22, 22});
    CHECK(index_select(x, -2, indices({1}, {1})).shape() == Shape{1, 3});
    CHECK(index_select(x, 0, indices({1}, {})).shape() == Shape{1, 3});
    CHECK(index_select(x, 0, indices({}, {0})).shape() == Shape{0, 3});
    CHECK(index_select(x.select(0, 1).select(0, 2), 0, indices({0}, {1})).item() == 22);
    CHECK(gather(x, 1, indices({0, 2}, {2, 1})).to_vector<std::int64_t>() == Numbers{10, 22});
    CHECK(gather(x.transpose(0, 1), 0, indices({2, 0}, {1, 2})).to_vector<std::int64_t>() == Numbers{12, 20});
    CHECK(gather(x.select(0, 0), 0, indices({1}, {})).shape() == Shape{});
    CHECK(take_along_dim(x, indices({5, 0}, {2})).to_vector<std::int64_t>() == Numbers{22, 10});
    CHECK(take_along_dim(x, indices({1}, {1, 1}), 1).to_vector<std::int64_t>() == Numbers{11, 21});
    CHECK(take_along_dim(x.select(0, 0).reshape({1, 3}), indices({1, 2}, {2, 1}), -1).to_vector<std::int64_t>() ==
          Numbers{11, 12});
    CHECK(scatter_add(x, 1, indices({0, 0, 2, 1}, {2, 2}), x).to_vector<std::int64_t>() ==
          Numbers{31, 11, 12, 20, 42, 42});
    CHECK(scatter_add(x, 0, indices({}, {0, 3}), x).to_vector<std::int64_t>() == Numbers{10, 11, 12, 20, 21, 22});

    const auto rejected = [](const std::function<void()>& call, const std::string& message) {
        CHECK(message_of<InvalidArgument>(call) == message);
    };
    const Tensor at = indices({0, 1}, {2}), weight = Tensor::zeros({4, 3});
    rejected([&] { embedding(weight, weight); },
             "embedding: index (4, 3) has dtype f32; expected i64 (use .to(DType::i64))");
    rejected([&] { embedding(at, x); },
             "embedding: weight (2, 3) has dtype i64; expected a floating dtype (use .to(DType::f32))");
    rejected([&] { index_select(x, 0, x); }, "index_select: index (2, 3) is not a vector; expected one dimension");
    CHECK_THROWS_AS(embedding(at, Tensor::zeros({4})), InvalidArgument);
    CHECK_THROWS_AS(index_select(x, 2, at), InvalidArgument);
    rejected(
        [&] { gather(x, 1, at); },
        "gather: index (2,) does not fit the tensor (2, 3); expected as many dimensions, and sizes that are not larger "
        "except along dimension 1");
    CHECK_THROWS_AS(gather(x, 1, indices({0, 0, 0}, {3, 1})), InvalidArgument);
    CHECK_THROWS_AS(take_along_dim(x, at, 1), InvalidArgument);
    CHECK_THROWS_AS(take_along_dim(x, indices({0, 0, 0}, {3, 1}), 1), InvalidArgument);
    CHECK_THROWS_AS(scatter_add(x, 1, indices({0, 0, 0, 0}, {1, 4}), x), InvalidArgument);
    CHECK_THROWS_AS(scatter_add(x, 1, indices({0}, {1, 1}), weight), InvalidArgument);
    rejected(
        [&] {
            scatter(weight, 1, indices({0}, {1, 1}), x);
        },
        "scatter: src has dtype i64; expected f32 like the tensor (use .to(dtype))");
    CHECK_THROWS_AS(scatter(x, 1, indices({0, 0, 0, 0}, {1, 4}), x), InvalidArgument);
    CHECK_THROWS_AS(scatter(x, 1, indices({0}, {1, 1}), 1.5), InvalidArgument);
    CHECK_THROWS_AS(index_copy(x, 1, indices({0}, {1}), x), InvalidArgument);
    // Nothing to replace, all dtypes, and a source that is smaller or larger than the tensor.
    CHECK(scatter(x, 1, Tensor::zeros({2, 0}, DType::i64), x).to_vector<std::int64_t>() == x.to_vector<std::int64_t>());
    CHECK(scatter(Tensor::zeros({2, 3}, DType::boolean), 1, indices({2, 0}, {2, 1}), true)
              .to(DType::i64)
              .to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 1, 1, 0, 0});
    CHECK(scatter(Tensor::zeros({3, 2}, DType::f16), 0, indices({2, 2}, {2, 1}),
                  Tensor::from(std::vector<float>{5, 6}, {2, 1}).to(DType::f16))
              .to(DType::f32)
              .to_vector<float>() == std::vector<float>{0, 0, 0, 0, 6, 0});
    CHECK(scatter(Tensor::scalar(1), 0, Tensor::scalar(0).to(DType::i64), 7).item() == 7);

    // Only the device sees the values.
    const Tensor beyond = index_select(weight, 0, indices({3, 4}, {2}));
    CHECK(message_of<InvalidArgument>([&] { (void)sum(beyond).item(); }) ==
          "index_select: index 4 in row 1 is out of range; expected 0 to (size of the dimension - 1)");
    const Tensor words = embedding(indices({0, 1, 2, -1, 0, 0}, {3, 2}), weight);
    CHECK(message_of<InvalidArgument>([&] { (void)sum(words).item(); }) ==
          "embedding: index -1 in row 1 is out of range; expected 0 to (size of the dimension - 1)");
    const Tensor replaced = scatter(weight, 1, indices({0, 1, 3, 0}, {4, 1}), 1);
    CHECK(message_of<InvalidArgument>([&] { (void)sum(replaced).item(); }) ==
          "scatter: index 3 in row 2 is out of range; expected 0 to (size of the dimension - 1)");
}

TEST_CASE("arguments of functions that cut and repeat") {
    const Tensor x = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, {3, 2});
    using Numbers = std::vector<std::int64_t>;
    CHECK(ones_like(x).dtype() == DType::i64);
    CHECK(ones_like(x).to_vector<std::int64_t>() == Numbers{1, 1, 1, 1, 1, 1});
    CHECK(full_like(x.slice(0, 0, 1), -3).to_vector<std::int64_t>() == Numbers{-3, -3});
    CHECK(zeros_like(x.tag_batch()).is_batch());
    CHECK(split(x, 2).size() == 2);
    CHECK(split(x, 2)[1].to_vector<std::int64_t>() == Numbers{5, 6});
    CHECK(split(x.slice(0, 0, 0), 2).size() == 1);
    CHECK(chunk(x, 2)[0].shape() == Shape{2, 2});
    CHECK(chunk(x, 9).size() == 3);
    CHECK(chunk(x.slice(0, 0, 0), 4).size() == 4);
    CHECK(flip(x, {0, 1}).to_vector<std::int64_t>() == Numbers{6, 5, 4, 3, 2, 1});
    CHECK(flip(x, {}).to_vector<std::int64_t>() == Numbers{1, 2, 3, 4, 5, 6});
    CHECK(roll(x, -1, 0).to_vector<std::int64_t>() == Numbers{3, 4, 5, 6, 1, 2});
    CHECK(repeat(x, {0, 1}).shape() == Shape{0, 2});
    CHECK(repeat(x.select(0, 0), {2, 1}).to_vector<std::int64_t>() == Numbers{1, 2, 1, 2});
    CHECK(repeat_interleave(x, 0, 1).shape() == Shape{3, 0});
    CHECK(tril(x > 2).to(DType::i64).to_vector<std::int64_t>() == Numbers{0, 0, 1, 1, 1, 1});
    const Tensor y = Tensor::zeros({2}), z = Tensor::zeros({3});
    CHECK(message_of<InvalidArgument>([&] {
              stack({y, z});
          }) == "stack: tensors of shapes (2,) and (3,); expected equal shapes");
    CHECK(message_of<InvalidArgument>([&] {
              split(x, {1, 1});
          }) == "split: the sizes add up to 2; expected 3, the size of dimension 0 of (3, 2)");
    CHECK_THROWS_AS(stack({}), InvalidArgument);
    CHECK(stack({x}).dtype() == x.dtype());
    CHECK_THROWS_AS(stack({y}, 2), InvalidArgument);
    CHECK_THROWS_AS(split(x, 0), InvalidArgument);
    CHECK_THROWS_AS(split(x, {4, -1}), InvalidArgument);
    CHECK_THROWS_AS(chunk(x, 0), InvalidArgument);
    CHECK_THROWS_AS(flip(x, {1, -1}), InvalidArgument);
    CHECK_THROWS_AS(roll(x, 1, 2), InvalidArgument);
    CHECK_THROWS_AS(repeat(x, {2}), InvalidArgument);
    CHECK_THROWS_AS(repeat(x, {1, -2}), InvalidArgument);
    CHECK_THROWS_AS(repeat_interleave(x, -1, 0), InvalidArgument);
    CHECK_THROWS_AS(triu(y), InvalidArgument);
    CHECK_THROWS_AS(split(Tensor::scalar(1), 1), InvalidArgument);
}
