// Transforms of rows, and the random numbers that they draw.
#include "lockstep/parallel/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "lockstep/parallel/data/dataset.h"
#include "lockstep/parallel/data/subset.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;
using ImageAndMask = std::tuple<Tensor, Tensor>;

namespace {

RowContext some_context(std::int64_t row = 0) { return RowContext({11, 3}, row); }

/// f32 (channels, height, width); element (c, y, x) is 10000 c + 100 y + x.
Tensor image_of(std::int64_t channels, std::int64_t height, std::int64_t width) {
    std::vector<float> values;
    for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t y = 0; y < height; ++y)
            for (std::int64_t x = 0; x < width; ++x) values.push_back(static_cast<float>(10000 * c + 100 * y + x));
    return Tensor::from(values, {channels, height, width});
}

/// (height, width) of the first channel of `image_of`.
template <class T>
Tensor mask_of(std::int64_t height, std::int64_t width) {
    std::vector<T> values;
    for (std::int64_t y = 0; y < height; ++y)
        for (std::int64_t x = 0; x < width; ++x) values.push_back(static_cast<T>(100 * y + x));
    return Tensor::from(values, {height, width});
}

/// The result if element (y, x) shows element place(y, x) of an image of `image_of`.
template <class Place>
std::vector<float> placed(std::int64_t channels, std::int64_t height, std::int64_t width, Place place) {
    std::vector<float> values;
    for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t y = 0; y < height; ++y)
            for (std::int64_t x = 0; x < width; ++x) {
                const auto [from_y, from_x] = place(y, x);
                values.push_back(static_cast<float>(10000 * c + 100 * from_y + from_x));
            }
    return values;
}

std::vector<float> first_channel(const Tensor& image) {
    std::vector<float> values = image.to_vector<float>();
    values.resize(static_cast<std::size_t>(image.size(1) * image.size(2)));
    return values;
}

template <class T>
std::vector<float> as_floats(const Tensor& tensor) {
    const std::vector<T> values = tensor.to_vector<T>();
    return {values.begin(), values.end()};
}

template <class Transform>
std::string refusal(const Transform& transform, ImageAndMask row) {
    RowContext context = some_context();
    return message_of<InvalidArgument>([&] { (void)transform(std::move(row), context); });
}

}  // namespace

TEST_CASE("a row's random numbers are those of Philox for seed, epoch and row") {
    RowContext context({(std::uint64_t{9} << 40) + 5, 7}, 123456789012);
    const auto key = philox(StepCounters{(std::uint64_t{9} << 40) + 5, 7, 0}, 0x726f776b, 123456789012);
    CHECK(context.key() == (std::uint64_t{key[0]} << 32 | key[1]));
    CHECK(context.epoch() == 7);
    CHECK(context.row() == 123456789012);
    const StepCounters state{context.key(), std::uint64_t{key[2]} << 32 | key[3], 0};
    const auto drawn = [&](std::uint64_t index) {
        const auto bits = philox(state, 0x726f7764, index);
        return std::uint64_t{bits[0]} << 32 | bits[1];
    };
    CHECK(context.bits() == drawn(0));
    CHECK(context.uniform() == std::ldexp(static_cast<double>(drawn(1) >> 11), -53));
    CHECK(context.integer(1000) ==
          static_cast<std::int64_t>(std::floor(std::ldexp(static_cast<double>(drawn(2)), -64) * 1000)));
    CHECK(context.flip(0.5) == (drawn(3) >> 63 == 0));
    CHECK(context.uniform(-2, 6) == -2 + 8 * std::ldexp(static_cast<double>(drawn(4) >> 11), -53));
    CHECK(context.key() == state.seed);  // independent of the drawn numbers

    std::set<std::uint64_t> keys;
    for (std::uint64_t seed = 0; seed < 10; ++seed)
        for (std::uint64_t epoch = 0; epoch < 10; ++epoch)
            for (std::int64_t row = 0; row < 10; ++row) keys.insert(RowContext({seed, epoch}, row).key());
    CHECK(keys.size() == 1000);
}

TEST_CASE("draws have their documented distribution") {
    double sum = 0, squares = 0;
    int heads = 0;
    std::vector<int> counts(7, 0);
    const int rows = 20000;
    for (std::int64_t row = 0; row < rows; ++row) {  // the first numbers of neighbouring rows
        RowContext context = some_context(row);
        const double number = context.uniform();
        sum += number;
        squares += number * number;
        ++counts[static_cast<std::size_t>(context.integer(7))];
        heads += context.flip(0.3) ? 1 : 0;
    }
    CHECK(std::abs(sum / rows - 0.5) < 0.01);
    CHECK(std::abs(squares / rows - 1.0 / 3) < 0.01);
    CHECK(std::abs(heads / static_cast<double>(rows) - 0.3) < 0.015);
    for (const int count : counts) CHECK(std::abs(count - rows / 7.0) < 250);

    RowContext context = some_context();
    CHECK(context.integer(1) == 0);
    CHECK(context.flip(1));
    CHECK_FALSE(context.flip(0));
    CHECK(context.uniform(3, 3) == 3);
    CHECK(contains(message_of<InvalidArgument>([&] { (void)context.integer(0); }), "0 numbers"));
    CHECK(contains(message_of<InvalidArgument>([&] { (void)context.flip(1.5); }), "1.5"));
    CHECK(contains(message_of<InvalidArgument>([&] { (void)context.uniform(2, 1); }), "from 2 to 1"));
    CHECK_THROWS_AS(context.uniform(0, std::nan("")), InvalidArgument);
}

TEST_CASE("to tensor: pixels become numbers, channels first, and masks become classes") {
    std::vector<std::uint8_t> pixels;
    for (int i = 0; i < 4 * 5 * 3; ++i) pixels.push_back(static_cast<std::uint8_t>(i * 37 % 256));
    const std::vector<std::uint8_t> classes{0, 1, 2, 255, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    RowContext context = some_context();
    const auto [image, mask] =
        ToTensor()(ImageAndMask(Tensor::from(pixels, {4, 5, 3}), Tensor::from(classes, {4, 5})), context);
    CHECK(image.shape() == Shape{3, 4, 5});
    const std::vector<float> values = image.to_vector<float>();
    for (std::size_t c = 0; c < 3; ++c)
        for (std::size_t p = 0; p < 20; ++p)
            REQUIRE(values[c * 20 + p] == static_cast<float>(static_cast<double>(pixels[p * 3 + c]) / 255));
    CHECK(mask.shape() == Shape{4, 5});
    CHECK(mask.to_vector<std::int64_t>() == std::vector<std::int64_t>(classes.begin(), classes.end()));

    const auto [grey, label] =
        ToTensor()(ImageAndMask(Tensor::from(classes, {4, 5}), Tensor::scalar(3, DType::i64)), context);
    CHECK(grey.shape() == Shape{1, 4, 5});
    CHECK(grey.to_vector<float>()[3] == 1.0f);
    CHECK(label.item() == 3);
    CHECK(contains(refusal(ToTensor(), ImageAndMask(image, mask)), "the image is f32 (3, 4, 5)"));
    CHECK(contains(refusal(ToTensor(), ImageAndMask(Tensor(), mask)), "undefined"));
}

TEST_CASE("normalise: every channel by its mean and deviation, and not the mask") {
    RowContext context = some_context();
    const Tensor image = image_of(3, 2, 4), mask = mask_of<std::int64_t>(2, 4);
    const auto [normal, same] = Normalize({1, 2, 3}, {2, 4, 8})(ImageAndMask(image, mask), context);
    const std::vector<float> before = image.to_vector<float>(), after = normal.to_vector<float>();
    for (std::size_t i = 0; i < before.size(); ++i) {
        const double mean[] = {1, 2, 3}, deviation[] = {2, 4, 8};
        REQUIRE(after[i] == static_cast<float>((before[i] - mean[i / 8]) / deviation[i / 8]));
    }
    CHECK(same.to_vector<std::int64_t>() == mask.to_vector<std::int64_t>());
    CHECK(std::get<0>(Normalize({100}, {1})(ImageAndMask(image, mask), context)).to_vector<float>()[23] == 20003.0f);
    CHECK(contains(refusal(Normalize({1, 2}, {1, 1}), ImageAndMask(image, mask)), "2 means for an image (3, 2, 4)"));
    CHECK(contains(refusal(Normalize({1}, {1}), ImageAndMask(mask, mask)), "i64 (2, 4)"));
    CHECK(contains(message_of<InvalidArgument>([] { Normalize({1, 2}, {1}); }), "2 means and 1 deviations"));
    CHECK(contains(message_of<InvalidArgument>([] { Normalize({1}, {0}); }), "deviation 0 of channel 0"));
    CHECK_THROWS_AS(Normalize({}, {}), InvalidArgument);
}

TEST_CASE("the center crop is torchvision's") {
    // int(round((size - crop) / 2.0)) of Python 3, for rooms of 0 to 7 pixels.
    const std::vector<std::int64_t> first{0, 0, 1, 2, 2, 2, 3, 4};
    for (std::int64_t room = 0; room < 8; ++room) {
        RowContext context = some_context();
        const std::int64_t top = first[static_cast<std::size_t>(room)];
        const std::int64_t left = first[static_cast<std::size_t>(7 - room)];
        const auto [image, mask] = CenterCrop(3, 4)(
            ImageAndMask(image_of(2, 3 + room, 11 - room), mask_of<std::int64_t>(3 + room, 11 - room)), context);
        const auto expected = placed(2, 3, 4, [&](auto y, auto x) { return std::pair(y + top, x + left); });
        CHECK(image.to_vector<float>() == expected);
        CHECK(as_floats<std::int64_t>(mask) == first_channel(image));
    }
    const ImageAndMask small(image_of(1, 4, 4), mask_of<std::int64_t>(4, 4));
    CHECK(
        contains(refusal(CenterCrop(5, 2), small), "Required crop size (5, 2) is larger than input image size (4, 4)"));
    CHECK_THROWS_AS(CenterCrop(0, 2), InvalidArgument);
}

TEST_CASE("random crops are uniform, and the same for image and mask") {
    std::map<std::pair<std::int64_t, std::int64_t>, int> places;
    for (std::int64_t row = 0; row < 1200; ++row) {
        RowContext context = some_context(row);
        const auto [image, mask] =
            RandomCrop(4, 3)(ImageAndMask(image_of(2, 6, 6), mask_of<std::int32_t>(6, 6)), context);
        const auto corner = static_cast<std::int64_t>(image.to_vector<float>()[0]);
        const std::int64_t top = corner / 100, left = corner % 100;
        ++places[{top, left}];
        REQUIRE(image.to_vector<float>() ==
                placed(2, 4, 3, [&](auto y, auto x) { return std::pair(y + top, x + left); }));
        REQUIRE(as_floats<std::int32_t>(mask) == first_channel(image));
    }
    CHECK(places.size() == 12);
    for (const auto& [place, count] : places) CHECK(std::abs(count - 100) < 40);
    const ImageAndMask small(image_of(1, 4, 4), mask_of<std::int64_t>(4, 4));
    CHECK(contains(refusal(RandomCrop(4, 5), small), "RandomCrop: Required crop size (4, 5)"));
    CHECK_THROWS_AS(RandomCrop(3, -1), InvalidArgument);
}

TEMPLATE_TEST_CASE("flips mirror image and mask alike, for any mask type", "", std::uint8_t, std::int32_t,
                   std::int64_t) {
    for (std::int64_t row = 0; row < 16; ++row) {
        RowContext context = some_context(row);
        const auto [image, mask] =
            RandomHorizontalFlip(0.5)(ImageAndMask(image_of(2, 2, 5), mask_of<TestType>(2, 5)), context);
        RowContext again = some_context(row);
        const bool flipped = again.flip(0.5);
        CHECK(image.to_vector<float>() ==
              placed(2, 2, 5, [&](auto y, auto x) { return std::pair(y, flipped ? 4 - x : x); }));
        CHECK(as_floats<TestType>(mask) == first_channel(image));
    }
    RowContext context = some_context();
    const auto [image, mask] = RandomVerticalFlip(1)(ImageAndMask(image_of(2, 3, 4), mask_of<TestType>(3, 4)), context);
    CHECK(image.to_vector<float>() == placed(2, 3, 4, [](auto y, auto x) { return std::pair(2 - y, x); }));
    CHECK(as_floats<TestType>(mask) ==
          as_floats<TestType>(Tensor::from(
              std::vector<TestType>{static_cast<TestType>(200), static_cast<TestType>(201), static_cast<TestType>(202),
                                    static_cast<TestType>(203), 100, 101, 102, 103, 0, 1, 2, 3},
              {3, 4})));
}

TEST_CASE("flips do not change labels or the dataset's own tensors, and reject mismatched rows") {
    RowContext context = some_context();
    const Tensor image = image_of(1, 2, 3), label = Tensor::from(std::vector<float>{1, 2, 3}, {3});
    const std::vector<float> before = image.to_vector<float>();
    const auto [flipped, same] = RandomHorizontalFlip(1)(ImageAndMask(image, label), context);
    CHECK(flipped.to_vector<float>() == std::vector<float>{2, 1, 0, 102, 101, 100});
    CHECK(same.to_vector<float>() == std::vector<float>{1, 2, 3});
    CHECK(image.to_vector<float>() == before);
    // A view of a larger tensor, which is not row-major.
    const auto [cut, other] = RandomVerticalFlip(1)(ImageAndMask(image_of(2, 4, 4).slice(2, 1, 3), label), context);
    CHECK(cut.to_vector<float>() == placed(2, 4, 2, [](auto y, auto x) { return std::pair(3 - y, x + 1); }));

    const Tensor bytes = Tensor::zeros({4, 5, 3}, DType::u8);  // not yet through ToTensor
    CHECK(contains(refusal(RandomHorizontalFlip(), ImageAndMask(bytes, Tensor::zeros({4, 5}, DType::u8))),
                   "tensor 1 of the row u8 (4, 5)"));
    CHECK(contains(refusal(RandomVerticalFlip(), ImageAndMask(label, image)), "the image is f32 (3,)"));
    CHECK(contains(message_of<InvalidArgument>([] { RandomHorizontalFlip(-0.1); }), "-0.1"));
    CHECK(contains(message_of<InvalidArgument>([] { RandomVerticalFlip(std::nan("")); }), "nan"));
}

TEST_CASE("composed transforms run in order and draw from one stream") {
    std::vector<std::string> calls;
    const Compose all(
        [&](ImageAndMask row, RowContext& context) {
            calls.push_back("first " + std::to_string(context.row()));
            return std::tuple(std::get<0>(row), std::get<1>(row), Tensor::scalar(context.uniform(), DType::f64));
        },
        RandomHorizontalFlip(1),
        [&](std::tuple<Tensor, Tensor, Tensor> row, RowContext& context) {
            calls.emplace_back("last");
            return std::tuple(std::get<0>(row), std::get<2>(row), Tensor::scalar(context.uniform(), DType::f64));
        });
    RowContext context = some_context(5), expected = some_context(5);
    const auto [image, first, last] = all(ImageAndMask(image_of(1, 1, 3), mask_of<std::int64_t>(1, 3)), context);
    CHECK(image.to_vector<float>() == std::vector<float>{2, 1, 0});
    CHECK(first.item() == expected.uniform());
    (void)expected.bits();  // the flip's
    CHECK(last.item() == expected.uniform());
    CHECK(calls == std::vector<std::string>{"first 5", "last"});
}

TEST_CASE("a transformed dataset is a dataset, and rows keep their numbers in a subset") {
    const auto numbers = [](ImageAndMask row, RowContext& context) {
        return std::tuple(std::get<0>(row), Tensor::scalar(static_cast<double>(context.row()), DType::i64));
    };
    const TensorDataset data(Tensor::arange(6), Tensor::zeros({6}));
    const Transformed inside(data, numbers);
    const Subset outer(inside, {4, 1, 1});
    const Transformed around(Subset(data, {4, 1, 1}), numbers);
    CHECK(outer.size() == 3);
    CHECK(around.size() == 3);
    for (std::int64_t row = 0; row < 3; ++row) {
        const std::int64_t origin = row == 0 ? 4 : 1;
        CHECK(outer.origin(row) == origin);
        CHECK(around.origin(row) == origin);
        RowContext context = some_context(origin);
        const auto [value, number] = outer.get(row, context);
        CHECK(value.item() == static_cast<double>(origin));
        CHECK(number.item() == static_cast<double>(origin));
        CHECK(std::get<0>(around.get(row, context)).item() == value.item());
    }
    const Subset nested(outer, {2, 0});
    CHECK(nested.origin(1) == 4);
}
