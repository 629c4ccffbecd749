// Special values, refused arguments and other properties of the functions that are made of others.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/special_layers.h"
#include "lockstep/ops/volume_layers.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::contains;
using test::message_of;

namespace {

constexpr float inf = INFINITY, nan_value = NAN;
using Numbers = std::vector<float>;

Tensor vector_of(const Numbers& numbers) { return Tensor::from(numbers, {std::ssize(numbers)}); }

/// Equal numbers with equal signs; NaN equals NaN.
void check_same(const Tensor& found, const Numbers& expected) {
    const Numbers y = found.to_vector<float>();
    REQUIRE(y.size() == expected.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
        INFO("element " << i << ": " << y[i] << ", expected " << expected[i]);
        if (std::isnan(expected[i]))
            CHECK(std::isnan(y[i]));
        else
            CHECK((y[i] == expected[i] && std::signbit(y[i]) == std::signbit(expected[i])));
    }
}

}  // namespace

TEST_CASE("formulas of one tensor: infinities, NaN and zeros as in PyTorch") {
    check_same(trunc(vector_of({-0.5F, -1.5F, 2.7F, inf, nan_value, -0.0F})), {-0.0F, -1, 2, inf, nan_value, -0.0F});
    check_same(frac(vector_of({-1.5F, 2.25F, inf, nan_value})), {-0.5F, 0.25F, nan_value, nan_value});
    check_same(remainder(vector_of({5, -5, 7.5F, nan_value, inf}), 3), {2, 1, 1.5F, nan_value, nan_value});
    check_same(remainder(vector_of({5, -5, -6}), -3), {-1, -2, -0.0F});
    check_same(remainder(vector_of({5}), 0), {nan_value});
    check_same(threshold(vector_of({1, 2, nan_value, -inf}), 1, 7), {7, 2, nan_value, 7});
    check_same(hardshrink(vector_of({0.5F, 0.6F, -inf, nan_value})), {0, 0.6F, -inf, nan_value});
    check_same(softshrink(vector_of({0.5F, 1.5F, -inf, nan_value})), {0, 1, -inf, nan_value});
    check_same(logit(vector_of({0, 1, 0.5F, 2})), {-inf, inf, 0, nan_value});
    const float largest = std::numeric_limits<float>::max();
    check_same(nan_to_num(vector_of({nan_value, inf, -inf, 1})), {0, largest, -largest, 1});
    check_same(nan_to_num(vector_of({nan_value, inf, -inf, 1}), 5, 6, 7), {5, 6, 7, 1});
    CHECK(nan_to_num(vector_of({inf}).to(DType::f16)).to(DType::f32).to_vector<float>() == Numbers{65504});
    CHECK(isnan(vector_of({nan_value, inf, 0})).to_vector<bool>() == std::vector<bool>{true, false, false});
    CHECK(isinf(vector_of({nan_value, inf, -inf, 0})).to_vector<bool>() == std::vector<bool>{false, true, true, false});
}

TEST_CASE("formulas of two tensors: infinities, NaN and zeros as in PyTorch") {
    check_same(logaddexp(vector_of({inf, -inf, -inf, nan_value, 1000}), vector_of({inf, -inf, 1, 1, 1000})),
               {inf, -inf, 1, nan_value, 1000 + std::log(2.0F)});
    check_same(xlogy(vector_of({0, 0, 0, 2, nan_value}), vector_of({0, inf, nan_value, 0, 1})),
               {0, 0, nan_value, -inf, nan_value});
    check_same(lerp(vector_of({1, 1}), vector_of({3, 3}), 1), {3, 3});
    check_same(lerp(vector_of({1, 1}), vector_of({3, 3}), vector_of({0, 2})), {1, 5});
    // beta 0: input is not read.
    check_same(
        addmm(vector_of({nan_value}), vector_of({2}).reshape({1, 1}), vector_of({3}).reshape({1, 1}), 0).reshape({1}),
        {6});
}

TEST_CASE("powers, angles and remainders of tensors: special values and their gradients are PyTorch's") {
    const auto check = [](Tensor (*function)(const Tensor&, const Tensor&), const Numbers& a, const Numbers& b,
                          const Numbers& values, const Numbers& by_a, const Numbers& by_b) {
        const Tensor x = vector_of(a).requires_grad_(), y = vector_of(b).requires_grad_(), z = function(x, y);
        check_same(z, values);
        sum(z).backward();
        check_same(x.grad() + 0.0F, by_a);  // -0 as 0
        check_same(y.grad() + 0.0F, by_b);
    };
    const float n = nan_value;
    check(pow, {0, 0, 0, -2, -2, n, inf, -1, 0, 1, 4}, {2, 0, -1, 3, 0.5F, 0, -1, inf, 0.5F, n, -0.5F},
          {0, 1, inf, -8, n, 1, 0, 1, 0, 1, 0.5F}, {0, 0, -inf, 12, n, 0, 0, inf, inf, n, -0.0625F},
          {0, 0, -inf, n, n, n, n, n, 0, 0, 0.6931471824645996F});
    const float pi = 3.1415927410125732F;
    check(atan2, {0, -0.0F, 0, -0.0F, 1, inf, n, -1}, {1, -1, -1, 1, 0, -inf, 1, 0},
          {0, -pi, pi, -0.0F, pi / 2, 2.356194496154785F, n, -pi / 2}, {1, -1, -1, 1, 0, n, n, 0},
          {0, 0, 0, 0, -1, n, n, 1});
    check(hypot, {0, 3, inf, n}, {0, 4, n, 1}, {0, 5, inf, n}, {n, 0.6F, n, n}, {n, 0.8F, n, n});
    check(fmod, {7, -7, 7, 1, inf, 5.5F}, {3, 3, -3, 0, 2, inf}, {1, -1, 1, n, n, 5.5F}, {1, 1, 1, 1, 1, 1},
          {-2, 2, 2, -inf, -inf, 0});
    check(remainder, {7, -7, 7, 1, inf, -5.5F}, {3, 3, -3, 0, 2, inf}, {1, 2, -2, n, n, inf}, {1, 1, 1, 1, 1, 1},
          {-2, 3, 3, -inf, n, 1});
    check_same(pow(2, vector_of({3, -1, inf})), {8, 0.5F, inf});
    check_same(pow(2.5, Tensor::from(std::vector<std::int64_t>{2, 3}, {2})), {6.25F, 15.625F});
}

TEST_CASE("order statistics: NaN, equal elements and one element") {
    const Tensor x = vector_of({3, nan_value, 1, 2, 1}).reshape({1, 5});
    check_same(median(x, 1).values, {nan_value});
    CHECK(median(x, 1).indices.to_vector<std::int64_t>() == std::vector<std::int64_t>{1});
    check_same(quantile(x, 0.5, 1), {nan_value});
    check_same(kthvalue(x, 4, 1).values, {3});
    check_same(kthvalue(x, 5, 1).values, {nan_value});
    check_same(nansum(x, 1), {7});
    check_same(nanmean(x, 1), {1.75F});
    check_same(nanmean(vector_of({nan_value}), 0).reshape({1}), {nan_value});
    const Tensor y = vector_of({4, 1, 1, 3});
    check_same(median(y, 0).values.reshape({1}), {1});
    check_same(quantile(y, 0.5, 0).reshape({1}), {2});
    check_same(quantile(y, 1, 0).reshape({1}), {4});
    check_same(quantile(y, 0, 0, true), {1});
    CHECK(count_nonzero(Tensor::from(std::vector<std::int64_t>{0, 3, 0, -1}, {4})).to_vector<std::int64_t>().at(0) ==
          2);
}

TEST_CASE("alpha_dropout keeps mean and variance, and gumbel_softmax draws by probability") {
    manual_seed(3);
    const Tensor x = Tensor::randn({40000}), y = alpha_dropout(x, 0.3);
    CHECK(std::abs(mean(y).item()) < 0.03);
    CHECK(std::abs(lockstep::std(y).item() - 1) < 0.03);
    CHECK(alpha_dropout(x, 0.3, false).to_vector<float>() == x.to_vector<float>());
    CHECK(sum(abs(alpha_dropout(x, 1))).item() == 0);

    const Tensor logits = log(vector_of({0.2F, 0.5F, 0.3F})).expand({20000, 3});
    const Tensor leaf = logits.contiguous().requires_grad_();
    const Tensor hard = gumbel_softmax(leaf, 0.7, true);
    const Numbers shares = mean(hard, 0).to_vector<float>();
    CHECK(shares[0] == Approx(0.2).margin(0.02));
    CHECK(shares[1] == Approx(0.5).margin(0.02));
    CHECK(sum(hard, 1).to_vector<float>() == Numbers(20000, 1));
    sum(hard * vector_of({1, 2, 3})).backward();
    CHECK(sum(abs(leaf.grad())).item() > 0);
    CHECK(sum(gumbel_softmax(logits), 1).to_vector<float>()[7] == Approx(1));
}

TEST_CASE("invalid arguments of the composed functions are named") {
    const Tensor x = Tensor::ones({2, 3}), v = Tensor::ones({3});
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"movedim: ", [&] { movedim(x, 2, 0); }},
        {"narrow: 2 elements from 2", [&] { narrow(x, 1, 2, 2); }},
        {"narrow: ", [&] { narrow(x, 1, 0, -1); }},
        {"unflatten: sizes (2, 2)",
         [&] {
             unflatten(x, 1, {2, 2});
         }},
        {"unflatten: ",
         [&] {
             unflatten(x, 1, {-1, -1});
         }},
        {"hstack: an empty list", [] { hstack({}); }},
        {"rot90: invalid dims",
         [&] {
             rot90(x, 1, {0, 0});
         }},
        {"diagonal: dimension 0 is given twice", [&] { diagonal(x, 0, 0, -2); }},
        {"trace: the tensor has 1 dimensions", [&] { trace(v); }},
        {"meshgrid: a tensor has the shape (2, 3)", [&] { meshgrid({x}); }},
        {"bmm: the first tensor has 2 dimensions", [&] { bmm(x, x); }},
        {"bmm: batches of 2 and 3",
         [] {
             bmm(Tensor::ones({2, 1, 1}), Tensor::ones({3, 1, 1}));
         }},
        {"dot: ", [&] { dot(x, v); }},
        {"addmm: shapes (4,) and (2, 5) do not broadcast",
         [&] {
             addmm(Tensor::ones({4}), x, Tensor::ones({3, 5}));
         }},
        {"addmm: input (7, 2, 5) has more rows or dimensions",
         [&] {
             addmm(Tensor::ones({7, 2, 5}), x, Tensor::ones({3, 5}));
         }},
        {"tensordot: ",
         [&] {
             tensordot(x, Tensor::ones({3, 2}));
         }},
        {"cross: ", [&] { cross(x, x, 0); }},
        {"cdist: ",
         [&] {
             cdist(x, Tensor::ones({2, 4}));
         }},
        {"cdist (norm): invalid order (3)", [&] { cdist(x, x, 3); }},
        {"bilinear: inputs",
         [&] {
             bilinear(x, x, Tensor::ones({2, 4, 3}));
         }},
        {"kthvalue: invalid k (4)", [&] { kthvalue(x, 4, 1); }},
        {"median: the tensor is a scalar", [] { median(Tensor::ones({}), 0); }},
        {"quantile: invalid q (1.5)", [&] { quantile(x, 1.5, 0); }},
        {"quantile: the tensor has dtype f16", [&] { quantile(x.to(DType::f16), 0.5, 0); }},
        {"adaptive_max_pool2d: cannot make 0 x 1",
         [] {
             adaptive_max_pool2d(Tensor::ones({1, 1, 2, 2}), {0, 1});
         }},
        {"local_response_norm: invalid size (0)",
         [] {
             local_response_norm(Tensor::ones({1, 1, 2}), 0);
         }},
        {"channel_shuffle: 2 groups",
         [] {
             channel_shuffle(Tensor::ones({1, 3, 2}), 2);
         }},
        {"gumbel_softmax: invalid tau (0)", [&] { gumbel_softmax(x, 0); }},
        {"hardshrink: invalid lambd (-1)", [&] { hardshrink(x, -1); }},
        {"alpha_dropout: invalid probability (2)", [&] { alpha_dropout(x, 2); }},
        {"index_fill: index has 2 dimensions",
         [&] {
             index_fill(x, 0, Tensor::zeros({1, 1}, DType::i64), 1);
         }},
        {"index_add: src (2, 3) with 3 indices", [&] { index_add(x, 0, Tensor::zeros({3}, DType::i64), x); }},
        {"embedding_bag: input has 1 dimensions", [&] { embedding_bag(Tensor::zeros({3}, DType::i64), x); }},
        {"multi_margin_loss: target has shape (3,)", [&] { multi_margin_loss(x, Tensor::zeros({3}, DType::i64)); }},
        {"margin_ranking_loss: input and target differ in shape", [&] { margin_ranking_loss(x, x, v); }},
        {"instance_norm: input (2, 3) has 3 channels; expected 4", [&] { InstanceNorm1d(4)(x); }},
        {"Bilinear: invalid in1_features (0)", [] { Bilinear(0, 1, 1); }},
        {"ConvTranspose1d: invalid in_channels (3)", [] { ConvTranspose1d(3, 2, 3, {.groups = 2}); }},
        {"clamp: both limits are undefined", [&] { clamp(x, Tensor(), Tensor()); }},
        {"rrelu: invalid slopes from 0.5 to 0.1", [&] { rrelu(x, 0.5, 0.1); }},
        {"feature_alpha_dropout: input has shape (3,)", [] { feature_alpha_dropout(Tensor::ones({3})); }},
        {"histc: 0 bins from 0 to 1", [&] { histc(x, 0, 0, 1); }},
        {"histc: 2 bins from 1 to 0", [&] { histc(x, 2, 1, 0); }},
        {"quantile: an empty list", [&] { quantile(x, std::vector<double>{}, 0); }},
        {"masked_scatter: mask has dtype f32", [&] { masked_scatter(x, x, x); }},
        {"masked_scatter: source has dtype i64", [&] { masked_scatter(x, x > 0, x.to(DType::i64)); }},
        {"tensordot: 1 dimensions of one tensor and 2",
         [&] {
             tensordot(x, x, {0}, {0, 1});
         }},
        {"cov: the tensor has the shape (1, 2, 3)", [&] { cov(x.unsqueeze(0)); }},
        {"block_diag: a tensor has the shape (1, 2, 3)", [&] { block_diag({x.unsqueeze(0)}); }},
        {"block_diag: an empty list", [] { block_diag({}); }},
        {"cartesian_prod: an empty list", [] { cartesian_prod({}); }},
        {"cartesian_prod: a tensor has 2 dimensions", [&] { cartesian_prod({x}); }},
        {"tril_indices: a matrix of -1 x 2", [] { tril_indices(-1, 2); }},
        {"movedim: invalid dimensions",
         [&] {
             movedim(x, {0, 0}, {0, 1});
         }},
        {"roll: 2 shifts for 1 dimensions",
         [&] {
             roll(x, std::vector<std::int64_t>{1, 2}, {0});
         }},
        {"multilabel_margin_loss: target has dtype f32", [&] { multilabel_margin_loss(x, x); }},
        {"triplet_margin_with_distance_loss: invalid margin (0)",
         [&] { triplet_margin_with_distance_loss(x, x, x, {}, {.margin = 0}); }},
        {"avg_pool2d: invalid divisor_override (0)",
         [] {
             avg_pool2d(Tensor::ones({1, 1, 2, 2}), 2, std::nullopt, 0, true, false, 0);
         }},
        {"lp_pool2d: invalid norm_type (0)",
         [] {
             lp_pool2d(Tensor::ones({1, 1, 2, 2}), 0, 2);
         }},
        {"max_pool2d_with_indices: invalid window (kernel_size 2, stride 2, padding 0, dilation 0)",
         [] {
             max_pool2d_with_indices(Tensor::ones({1, 1, 2, 2}), 2, std::nullopt, 0, false, 0);
         }},
        {"max_pool2d_with_indices: the window of 3 does not fit",
         [] {
             max_pool2d_with_indices(Tensor::ones({1, 1, 2, 2}), 2, std::nullopt, 0, false, 2);
         }},
        {"max_unpool2d: input (1, 1, 2, 2) and indices (1, 1, 2, 1) differ",
         [] {
             max_unpool2d(Tensor::ones({1, 1, 2, 2}), Tensor::zeros({1, 1, 2, 1}, DType::i64), 2);
         }},
        {"max_unpool1d: invalid output_size (0,)",
         [] {
             max_unpool1d(Tensor::ones({1, 1, 2}), Tensor::zeros({1, 1, 2}, DType::i64), 2, std::nullopt, 0, 0);
         }},
        {"adaptive_max_pool3d: cannot make 0 planes",
         [] {
             adaptive_max_pool3d(Tensor::ones({1, 1, 2, 2, 2}), {0, 1, 1});
         }},
        {"Softmax2d: input has 2 dimensions", [&] { Softmax2d()(x); }},
    };
    for (const auto& [part, call] : calls) {
        INFO(part);
        CHECK_THAT(message_of<InvalidArgument>(call), contains(part));
    }
}

TEST_CASE("the rarer layers are their functions, with PyTorch's parameters") {
    const Tensor x = Tensor::randn({2, 4, 6}), images = Tensor::randn({2, 4, 6, 6});
    CHECK(InstanceNorm1d(4)(x).to_vector<float>() == instance_norm(x).to_vector<float>());
    CHECK_FALSE(InstanceNorm2d(4).weight.has_value());
    CHECK(InstanceNorm2d(4, {.affine = true}).bias.has_value());
    const ConvTranspose1d up(4, 6, 3, {.stride = 2, .groups = 2});
    CHECK(up.weight->shape() == Shape{4, 3, 3});
    CHECK(up(x).to_vector<float>() == conv_transpose1d(x, up.weight, *up.bias, 2, 0, 0, 2).to_vector<float>());
    const Bilinear both(6, 6, 5);
    CHECK(both.weight->shape() == Shape{5, 6, 6});
    CHECK(both(x, x).to_vector<float>() == bilinear(x, x, both.weight, *both.bias).to_vector<float>());
    const EmbeddingBag bag(7, 3, EmbeddingBagMode::sum);
    CHECK(bag(Tensor::zeros({2, 4}, DType::i64)).shape() == Shape{2, 3});
    CHECK(PixelShuffle(2)(images).shape() == Shape{2, 1, 12, 12});
    CHECK(PixelUnshuffle(2)(images).shape() == Shape{2, 16, 3, 3});
    CHECK(ChannelShuffle(2)(images).to_vector<float>() == channel_shuffle(images, 2).to_vector<float>());
    CHECK(AdaptiveMaxPool2d({1, 1})(images).shape() == Shape{2, 4, 1, 1});
    CHECK(AdaptiveMaxPool1d(3)(x).shape() == Shape{2, 4, 3});
    CHECK(AdaptiveAvgPool1d(3)(x).shape() == Shape{2, 4, 3});
    CHECK(AvgPool1d(2)(x).shape() == Shape{2, 4, 3});
    CHECK(LocalResponseNorm(3)(images).to_vector<float>() == local_response_norm(images, 3).to_vector<float>());
    CHECK(Unflatten(1, {2, -1})(x).shape() == Shape{2, 2, 2, 6});
    CHECK(CosineSimilarity(2)(x, x).shape() == Shape{2, 4});
    CHECK(PairwiseDistance()(x, x).shape() == Shape{2, 4});
    CHECK(Softmin(1)(x).to_vector<float>() == softmin(x, 1).to_vector<float>());
    CHECK(Threshold(0.1, 2)(x).to_vector<float>() == threshold(x, 0.1, 2).to_vector<float>());
    CHECK(Hardtanh()(x).to_vector<float>() == hardtanh(x).to_vector<float>());
    Dropout1d channels(0.5);
    CHECK(channels(x).to_vector<float>() != x.to_vector<float>());
    channels.training = false;
    CHECK(channels(x).to_vector<float>() == x.to_vector<float>());
}

TEST_CASE("PyTorch's special values of limits that are tensors, signs, medians and histograms") {
    const Tensor low = vector_of({0.5F, 1, nan_value, 0, 1, 3}), high = vector_of({1, 2, 3, 4, 4, 2});
    const Tensor leaf = vector_of({0, 1, 2, nan_value, 5, 1}).requires_grad_();
    low.requires_grad_();
    const Tensor limited = clamp(leaf, low, high);
    check_same(limited, {0.5F, 1, nan_value, nan_value, 4, 2});
    sum(limited).backward();
    check_same(leaf.grad(), {0, 1, 0, 0, 0, 0});
    check_same(low.grad(), {1, 0, 0, 0, 0, 0});
    check_same(clamp(vector_of({nan_value, -0.0F}), vector_of({0}), {}), {nan_value, -0.0F});
    CHECK(lockstep::signbit(vector_of({-1, -0.0F, 0, -inf, inf})).to_vector<bool>() ==
          std::vector<bool>{true, true, false, true, false});
    check_same(median(vector_of({3, nan_value, 1})).reshape({1}), {nan_value});
    check_same(nanmedian(vector_of({3, nan_value, 1, 2, nan_value}), 0, true).values, {2});
    check_same(nanmedian(vector_of({nan_value, nan_value}), 0, true).values, {nan_value});
    check_same(mode(vector_of({2, nan_value, 7, 2, nan_value, nan_value}), 0, true).values, {2});
    check_same(histc(vector_of({1, nan_value, 2, 3, 5}), 2, 1, 3), {1, 2});
    check_same(histc(vector_of({2, 2, 2}), 4), {0, 0, 3, 0});  // from 1 to 3
    check_same(histc(Tensor::zeros({0}), 3), {0, 0, 0});
    check_same(trapezoid(vector_of({1, 3, 2}), vector_of({0, 1, 4})).reshape({1}), {9.5F});
    check_same(corrcoef(vector_of({1, 2, 4})).reshape({1}), {1});
    CHECK(isin(vector_of({1, nan_value}), vector_of({nan_value, 1})).to_vector<bool>() ==
          std::vector<bool>{true, false});
    CHECK(isin(vector_of({1, 2}), Tensor::zeros({0}), true).to_vector<bool>() == std::vector<bool>{true, true});
}

TEST_CASE("elements after the last whole window, and NaN and infinities, in pooling") {
    // One window with two elements of -inf, which has the position of one of them.
    const Tensor x = Tensor::from(Numbers{1, nan_value, -inf, -inf}, {1, 1, 1, 4});
    const ValuesAndIndices found = max_pool2d_with_indices(x, {1, 2});
    check_same(found.values, {nan_value, -inf});
    CHECK(found.indices.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2});
    const ValuesAndIndices padded = max_pool1d_with_indices(Tensor::full({1, 1, 2}, -inf), 2, 2, 1);
    for (const std::int64_t index : padded.indices.to_vector<std::int64_t>()) CHECK((index == 0 || index == 1));
    check_same(avg_pool1d(vector_of({1, 2, 6}).reshape({1, 1, 3}), 2, 2, 0, true, true), {1.5F, 6});
    const Tensor leaf = Tensor::from(Numbers{3, 4, 0, 0}, {1, 1, 4}).requires_grad_();
    const Tensor roots = lp_pool1d(leaf, 2, 2);
    const Numbers root = roots.to_vector<float>();
    CHECK(root[0] == Approx(5));
    CHECK(root[1] == 0);
    sum(roots).backward();
    const Numbers gradient = leaf.grad().to_vector<float>();
    CHECK(gradient[0] == Approx(0.6));
    CHECK(gradient[2] == 0);
}

TEST_CASE("rrelu draws slopes, and feature_alpha_dropout drops whole channels") {
    manual_seed(4);
    const Tensor x = Tensor::full({4000}, -2);
    const Numbers y = rrelu(x, 0.1, 0.3, true).to_vector<float>();
    double total = 0;
    for (const float value : y) {
        CHECK((value <= -0.2F && value >= -0.6F));
        total += value / 4000;
    }
    CHECK(total == Approx(-0.4).margin(0.01));
    check_same(rrelu(vector_of({-1, 0, 2}), 0.25, 0.75, true).slice(0, 1), {0, 2});
    RReLU layer(0.25, 0.75);
    layer.training = false;
    check_same(layer(vector_of({-1, 2})), {-0.5F, 2});
    const Tensor images = Tensor::randn({3, 5, 2, 2}), dropped = feature_alpha_dropout(images, 0.5);
    const Tensor same = eq(dropped, dropped.slice(2, 0, 1).slice(3, 0, 1));
    const auto whole = all(same.flatten(2), 2).to_vector<bool>();
    const auto count = std::count(whole.begin(), whole.end(), true);
    CHECK(count > 2);
    CHECK(count < 13);
    CHECK(feature_alpha_dropout(images, 0.5, false).to_vector<float>() == images.to_vector<float>());
}

TEST_CASE("pooling layers are their functions") {
    const Tensor x = Tensor::randn({1, 2, 9}), images = Tensor::randn({1, 2, 7, 6});
    const Tensor volumes = Tensor::randn({1, 2, 4, 5, 6});
    const auto check_layer = [](const Tensor& found, const Tensor& expected) {
        CHECK(found.shape() == expected.shape());
        CHECK(found.to_vector<float>() == expected.to_vector<float>());
    };
    check_layer(MaxPool1d(3, 2, 1, true, 2)(x), max_pool1d(x, 3, 2, 1, true, 2));
    check_layer(MaxPool2d(2, Pair(2), 1, true, 2)(images), max_pool2d(images, 2, Pair(2), 1, true, 2));
    check_layer(MaxPool3d(2, Triple(2), 1, true, 2)(volumes), max_pool3d(volumes, 2, Triple(2), 1, true, 2));
    check_layer(AvgPool1d(2, 2, 0, false, true)(x), avg_pool1d(x, 2, 2, 0, false, true));
    check_layer(AvgPool2d(2, Pair(2), 1, false, true)(images), avg_pool2d(images, 2, Pair(2), 1, false, true));
    check_layer(AvgPool3d(2, Triple(2), 1, true, true, 3)(volumes),
                avg_pool3d(volumes, 2, Triple(2), 1, true, true, 3));
    check_layer(LPPool1d(2, 2)(abs(x)), lp_pool1d(abs(x), 2, 2));
    check_layer(LPPool2d(2, 2)(images), lp_pool2d(images, 2, 2));
    check_layer(LPPool3d(2, 2)(volumes), lp_pool3d(volumes, 2, 2));
    check_layer(AdaptiveMaxPool3d({1, 2, 3})(volumes), adaptive_max_pool3d(volumes, {1, 2, 3}));
    check_layer(Softmax2d()(images), softmax(images, 1));
    const ValuesAndIndices line = max_pool1d_with_indices(x, 3), plane = max_pool2d_with_indices(images, 2);
    const ValuesAndIndices volume = max_pool3d_with_indices(volumes, 2);
    check_layer(MaxUnpool1d(3)(line.values, line.indices), max_unpool1d(line.values, line.indices, 3));
    check_layer(MaxUnpool2d(2).forward(plane.values, plane.indices, Pair(7, 6)),
                max_unpool2d(plane.values, plane.indices, 2, std::nullopt, 0, Pair(7, 6)));
    check_layer(MaxUnpool3d(2).forward(volume.values, volume.indices, Triple(4, 5, 6)),
                max_unpool3d(volume.values, volume.indices, 2, std::nullopt, 0, Triple(4, 5, 6)));
}
