// Functions of images and masks beyond the op table: layouts, rejected calls, the score of masks, histograms.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/histogram.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

using Floats = std::vector<float>;
using Integers = std::vector<std::int64_t>;

const Device device = Device::cpu(0);

std::string refusal(const std::function<void()>& call) { return message_of<InvalidArgument>(call); }

Tensor masks(const Integers& values, const Shape& shape) { return Tensor::from(values, shape, device); }

}  // namespace

TEST_CASE("channels of a U-Net decoder are concatenated and split in place") {
    Trace trace({device, 1, false, 1});
    const TraceScope scope(trace);
    const auto image = [&](std::int64_t channels, std::int64_t height, std::int64_t width) {
        return trace.input(TensorMeta::contiguous(DType::f32, {2, channels, height, width}, true), true);
    };
    const auto weight = [](std::int64_t out, std::int64_t in, std::int64_t size) {
        const std::vector<float> values(static_cast<std::size_t>(out * in * size * size), 0.1f);
        return Tensor::from(values, {out, in, size, size}).to(device).requires_grad_();
    };
    const Tensor first = weight(32, 32, 3), below = weight(64, 64, 3), up = weight(64, 32, 2), last = weight(16, 64, 3);
    const Tensor skip = conv2d(image(32, 13, 10), first, {}, 1, 1);
    const Tensor deep = conv2d(image(64, 6, 5), below, {}, 1, 1);
    for (const bool bilinear : {false, true}) {
        Tensor grown = bilinear
                           ? interpolate(conv2d(deep, weight(32, 64, 1)),
                                         {.scale_factor = 2, .mode = InterpolateMode::bilinear, .align_corners = true})
                           : conv_transpose2d(deep, up, {}, 2);
        REQUIRE(grown.shape() == Shape({2, 32, 12, 10}));
        grown = pad(grown, {0, 0, 0, 1});
        REQUIRE(skip.impl()->storage->opaque != nullptr);
        REQUIRE(grown.impl()->storage->opaque != nullptr);
        const std::size_t forward = trace.records().size();
        const Tensor both = cat({skip, grown}, 1);
        CHECK(trace.records().size() == forward + 1);
        REQUIRE(both.impl()->storage->opaque != nullptr);
        CHECK(both.impl()->storage->opaque->str() == skip.impl()->storage->opaque->str());
        const Tensor y = conv2d(both, last, {}, 1, 1);
        // One record for each part of backward, in its present layout.
        const std::size_t before = trace.records().size();
        run_backward({y}, {conv2d(y, weight(16, 16, 1)).detach()}, true, [](const Tensor&, const Tensor&) {});
        std::size_t splits = 0, between = 0;
        for (std::size_t i = before; i < trace.records().size(); ++i) {
            const Record& record = trace.records()[i];
            if (record.operation->name() == "split") {
                ++splits;
                for (const Operand& out : record.out) CHECK(out.meta.opaque != nullptr);
            }
            // Reorders of activations; those of weights have fewer elements than an image.
            const bool of_image = record.operation->name() == "reorder" && record.in[0].meta.shape.dims() == 4 &&
                                  record.in[0].meta.shape[0] == 2 && record.out[0].meta.opaque == nullptr;
            between += of_image;
        }
        CHECK(splits == 1);
        CHECK(between <= 2);  // the gradients of the two inputs, converted to the layout of leaves
    }
}

TEST_CASE("Upsample is equivalent to interpolate") {
    const Tensor x = Tensor::randn({1, 2, 3, 4}).to(device);
    const InterpolateOptions options{.scale_factor = 2, .mode = InterpolateMode::bilinear, .align_corners = true};
    CHECK(Upsample(options)(x).to_vector<float>() == interpolate(x, options).to_vector<float>());
    const Tensor pixels = Tensor::from(Floats{1, 2, 3, 4}, {1, 1, 2, 2}, device);
    CHECK(Upsample({.scale_factor = 2})(pixels).to_vector<float>() ==
          Floats{1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4});
    CHECK(Upsample({.size = Pair(3, 3), .mode = InterpolateMode::bilinear, .align_corners = true})(pixels)
              .to_vector<float>() == Floats{1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4});
}

TEST_CASE("interpolate rejects invalid arguments") {
    const Tensor x = Tensor::zeros({1, 2, 3, 4});
    CHECK(refusal([&] { (void)interpolate(x, {}); }) ==
          "interpolate: neither size nor scale_factor is given; expected one of them");
    CHECK(refusal([&] { (void)interpolate(x, {.size = Pair(2), .scale_factor = 2}); }) ==
          "interpolate: both size and scale_factor are given; expected one of them");
    CHECK(refusal([&] {
              (void)interpolate(x, {.scale_factor = 2, .align_corners = true});
          }).starts_with("interpolate: align_corners is set for a mode that does not interpolate"));
    CHECK(refusal([&] { (void)interpolate(x, {.scale_factor = 0.1}); }) ==
          "interpolate: input (1, 2, 3, 4) and size (0, 0); expected at least one element along every dimension");
    CHECK(refusal([&] {
              (void)interpolate(x, {.size = Pair(-1, 2)});
          }).starts_with("interpolate: input (1, 2, 3, 4) and size (-1, 2)"));
    CHECK(refusal([&] {
              (void)interpolate(x, {.scale_factor = std::nan("")});
          }).starts_with("interpolate: invalid scale_f"));
    CHECK(refusal([&] {
              (void)interpolate(x, {.scale_factor = 1e30});
          }).starts_with("interpolate: invalid scale_factor"));
    CHECK(refusal([&] {
              (void)interpolate(Tensor::zeros({3, 4}), {.scale_factor = 2});
          }) == "interpolate: input has 2 dimensions, (3, 4); expected (N, C, L), (N, C, H, W) or (N, C, D, H, W)");
    CHECK(refusal([&] {
              (void)interpolate(x.to(DType::i64), {.scale_factor = 2});
          }).starts_with("interpolate: input (1, 2, 3, 4) has dtype i64"));
}

TEST_CASE("pad, permute and one_hot reject invalid arguments and accept integers") {
    const Tensor x = Tensor::zeros({2, 3});
    CHECK(refusal([&] { (void)pad(x, {1}); }).starts_with("pad: 1 numbers; expected two per dimension"));
    CHECK(refusal([&] { (void)pad(x, {1, 1, 1, 1, 1, 1}); }).starts_with("pad: 6 numbers for input ("));
    CHECK(refusal([&] {
              (void)pad(x, {-2, -2});
          }) == "pad: padding -2 and -2 of dimension 1 of input (2, 3); expected a result of 0 or more elements");
    CHECK(refusal([&] { (void)pad(x, {INT64_MAX, INT64_MAX}); }).starts_with("pad: padding 9223372036854775807 and "));
    CHECK(pad(x, {0, 0}).impl() == x.impl());
    CHECK(pad(x, {-1, -2}).numel() == 0);
    CHECK(pad(masks({1, 2}, {1, 2}), {1, 0, 0, 1}, 7).to_vector<std::int64_t>() == Integers{7, 1, 2, 7, 7, 7});
    CHECK(refusal([&] { (void)permute(x, {0}); }).starts_with("permute: the number of dimensions in the tensor input"));
    CHECK(refusal([&] {
              (void)permute(x, {1, -1});
          }) == "permute: dimension -1 is listed twice; expected every dimension once");
    CHECK_THROWS_AS(permute(x, {0, 2}), InvalidArgument);
    CHECK(permute(masks({1, 2, 3, 4, 5, 6}, {2, 3}), {1, 0}).to_vector<std::int64_t>() == Integers{1, 4, 2, 5, 3, 6});
    CHECK(permute(x.tag_batch(), {0, 1}).is_batch());
    CHECK_FALSE(permute(x.tag_batch(), {1, 0}).is_batch());
    CHECK(refusal([&] { (void)one_hot(x, 2); }).starts_with("one_hot: one_hot is only applicable to index tensors"));
    CHECK(refusal([&] { (void)one_hot(masks({0}, {1}), -1); }) ==
          "one_hot: invalid num_classes (-1); expected a positive number");
    const std::string outside = " is out of range; expected a class from 0 to the number of outputs - 1";
    for (const Device where : {Device::host(), device}) {
        const Tensor bad = one_hot(Tensor::from(Integers{0, 1, 1, 0, 2, 0}, {3, 2}, where), 2);
        CHECK(refusal([&] { (void)bad.to_vector<std::int64_t>(); }) == "one_hot: target 2 in row 2" + outside);
        const Tensor negative = one_hot(Tensor::from(Integers{0, -1}, {2}, where), 2);
        CHECK(refusal([&] { (void)negative.to_vector<std::int64_t>(); }) == "one_hot: target -1 in row 1" + outside);
    }
}

TEST_CASE("losses of maps name the image of a target out of range, and reject mismatched shapes") {
    const Tensor logits = Tensor::randn({2, 3, 2, 2}).to(device);
    CHECK(refusal([&] {
              (void)cross_entropy(logits, masks({0, 1, 2, 0, 1, 3, -7, 0}, {2, 2, 2})).item();
          }) ==
          "cross_entropy: target 3 in row 1 is out of range; expected a class from 0 to the number of outputs - 1");
    CHECK(
        refusal([&] {
            (void)cross_entropy(logits, masks({0, 1}, {2}));
        }) ==
        "cross_entropy: target (2,) does not match input (2, 3, 2, 2); expected (2, 2, 2), a class for each position");
    CHECK(refusal([&] { (void)cross_entropy(Tensor::zeros({3}), masks({0}, {1})); }) ==
          "cross_entropy: input has shape (3,); expected a batch of rows, (N, C), or of maps, (N, C, H, W)");
    // More positions than a chunk of the sum.
    const Tensor large = Tensor::full({1, 2, 300, 300}, 0, DType::f32, device);
    const Loss loss = cross_entropy(large, Tensor::zeros({1, 300, 300}, DType::i64, device));
    CHECK(loss.terms()[0].denominator.item() == 90000);
    CHECK(loss.item() == Approx(std::log(2.0)).epsilon(1e-6));
}

TEST_CASE("binary_cross_entropy_with_logits rejects invalid arguments") {
    const Tensor x = Tensor::zeros({2, 3, 4});
    const auto with = [&](const BceWithLogitsOptions& options) {
        return refusal([&] { (void)BceWithLogitsLoss{options}(x, x); });
    };
    CHECK(refusal([&] {
              (void)binary_cross_entropy_with_logits(x, Tensor::zeros({2, 3}));
          }) ==
          "binary_cross_entropy_with_logits: input and target differ in shape, (2, 3, 4) and (2, 3); expected equal "
          "shapes");
    CHECK(with({.pos_weight = Tensor::zeros({2, 1, 1})}) ==
          "binary_cross_entropy_with_logits: pos_weight (2, 1, 1) does not broadcast over the rows of input (2, 3, 4); "
          "expected the same weights for every row, without dimension 0");
    CHECK_FALSE(with({.weight = Tensor::zeros({5})}).empty());
    CHECK_FALSE(with({.weight = Tensor::zeros({1, 2, 3, 4})}).empty());
    CHECK(with({.weight = Tensor::zeros({4}).requires_grad_()}).find("weight requires a gradient") !=
          std::string::npos);
    CHECK(with({.weight = Tensor::zeros({4})}).empty());
    CHECK(with({.pos_weight = Tensor::zeros({3, 1})}).empty());
}

TEST_CASE("dice of a mask that is never predicted, and of an empty mask") {
    const Tensor none = Tensor::zeros({1, 1, 2, 2}).to(device),
                 half = Tensor::from(Floats{1, 1, 0, 0}, {1, 1, 2, 2}, device);
    CHECK(dice_loss(none, none).item() == Approx(0).margin(1e-12));  // 0 / 0 is a perfect match
    CHECK(dice_loss(half, half).item() == Approx(0).margin(1e-6));
    CHECK(dice_loss(none, half).item() == Approx(1 - 1e-6 / (2 + 1e-6)));
    CHECK(dice_loss(half.reshape({1, 2, 2}), masks({1, 0, 1, 0}, {1, 2, 2})).item() == Approx(0.5).epsilon(1e-5));
    CHECK(DiceLoss{{.epsilon = 1}}(none, half).item() == Approx(1 - 1.0 / 3));
}

TEST_CASE("dice_score of each image, without the background") {
    // Largest of three classes: image 0 is 0 1 / 2 2, image 1 is 0 0 / 0 0.
    const Tensor logits = Tensor::from(Floats{5, 0, 0, 0, 1, 4, 1, 1, 0,  1,  3,  2,  //
                                              1, 1, 1, 1, 0, 0, 0, 0, -1, -1, -1, -1},
                                       {2, 3, 2, 2}, device);
    const Tensor truth = masks({0, 1, 2, 1, 0, 0, 0, 2}, {2, 2, 2});
    const auto score = dice_score(logits, truth).to_vector<float>();
    REQUIRE(score.size() == 2);
    CHECK(score[0] == Approx((2.0 / 3 + 2.0 / 3) / 2).epsilon(1e-5));
    CHECK(score[1] == Approx((1.0 + 0.0) / 2).epsilon(1e-5));  // class 1 occurs in neither
    const Tensor single = Tensor::from(Floats{0.1F, -0.1F, 2, 0}, {1, 1, 2, 2}, device);
    CHECK(dice_score(single, masks({1, 1, 0, 0}, {1, 2, 2})).to_vector<float>()[0] == Approx(0.5).epsilon(1e-5));
    CHECK_FALSE(dice_score(logits.clone().requires_grad_(), truth).requires_grad());
    CHECK(dice_score(logits.tag_batch(), truth.tag_batch()).is_batch());
}

TEST_CASE("dice functions reject invalid arguments") {
    const Tensor p = Tensor::zeros({2, 3, 4, 5});
    CHECK(refusal([&] { (void)dice_loss(p, masks({0}, {1}).to(Device::host())); }) ==
          "dice_loss: target (1,) does not match input (2, 3, 4, 5); expected (2, 4, 5), a class for each position, or "
          "a mask for each class of the input's shape and dtype");
    CHECK(refusal([&] {
              (void)dice_loss(p, Tensor::zeros({2, 3, 4}));
          }).starts_with("dice_loss: target (2, 3, 4) of dtype f32 does not match input (2, 3, 4, 5) of dtype f32"));
    CHECK(refusal([&] {
              (void)dice_score(Tensor::zeros({2, 3}), p);
          }) == "dice_score: input has 2 dimensions, (2, 3); expected (N, C, H, W) or (N, H, W)");
    CHECK(refusal([&] { (void)DiceLoss{{.epsilon = -1}}(p, p); }) ==
          "dice_loss: invalid epsilon (-1); expected 0 or more");
    const Tensor bad = masks({0, 1, 2, 4}, {1, 2, 2});
    CHECK(refusal([&] {
              (void)dice_loss(Tensor::zeros({1, 3, 2, 2}).to(device), bad).item();
          }) == "dice_loss: target 4 in row 0 is out of range; expected a class from 0 to the number of outputs - 1");
}

TEST_CASE("a histogram counts NaN and infinities separately, the same in every run and for any number of threads") {
    std::vector<float> values;
    for (int i = 0; i < 200'000; ++i) values.push_back(static_cast<float>(i % 1000) - 250);
    values[5] = NAN;
    values[70'001] = INFINITY;
    values[150'003] = -INFINITY;
    const Tensor edges = Tensor::from(std::vector<double>{-INFINITY, -100, 0, 0.5, 749}, {5}, device);
    const Tensor x = Tensor::from(values, {400, 500}, device);
    const HistogramCounts found = histogram(x, edges);
    Integers counts(4);
    double sum = 0, squares = 0;
    for (const float value : values) {
        const double v = value;
        if (std::isfinite(v)) {
            sum += v;
            squares += v * v;
        }
        if (v < -100)
            ++counts[0];
        else if (v < 0)
            ++counts[1];
        else if (v < 0.5)
            ++counts[2];
        else if (v <= 749)
            ++counts[3];
    }
    CHECK(found.counts.to_vector<std::int64_t>() == counts);
    const HistogramCounts::Summary summary = found.read_summary();
    CHECK(summary.nan == 1);
    CHECK(summary.infinite == 2);
    CHECK(summary.finite == 199'997);
    CHECK(summary.min == -250);
    CHECK(summary.max == 749);
    CHECK(summary.sum == Approx(sum));
    CHECK(summary.sum_squares == Approx(squares));
    for (const int threads : {1, 3}) {
        const ComputeScope scope({.threads = threads, .deterministic = true});
        const HistogramCounts again = histogram(x, edges);
        CHECK(again.counts.to_vector<std::int64_t>() == counts);
        CHECK(again.summary.to_vector<double>() == found.summary.to_vector<double>());
    }
    CHECK(histogram(Tensor::zeros({0}).to(device), edges).read_summary().finite == 0);
    CHECK(refusal([&] {
              (void)histogram(x, edges.to(DType::f32));
          }).starts_with("histogram: edges of shape (5,) and dtype f32"));
    CHECK_THROWS_AS(histogram(x, Tensor::zeros({1}, DType::f64, device)), InvalidArgument);
}
