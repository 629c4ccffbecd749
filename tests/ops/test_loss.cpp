// Losses as sums of terms, and rejected arguments.
#include "lockstep/ops/loss.h"

#include <cmath>

#include "lockstep/ops/dice.h"
#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using test::Array;

namespace {

Tensor classes(const std::vector<std::int64_t>& values) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

const Device device = Device::cpu(0);

}  // namespace

TEST_CASE("nll_loss keeps numerator and weight separate") {
    const Tensor logp = Tensor::from(std::vector<float>{-1, -2, -3, -4, -5, -6}, {3, 2}).to(device);
    const Tensor target = classes({1, 0, 1}).to(device);
    const Loss plain = nll_loss(logp, target);
    REQUIRE(plain.terms().size() == 1);
    CHECK(plain.terms()[0].numerator.item() == 2 + 3 + 6);
    CHECK(plain.terms()[0].denominator.item() == 3);
    CHECK(plain.item() == Approx(11.0 / 3));

    const Tensor weight = Tensor::from(std::vector<float>{0.5f, 2}, {2}).to(device);
    const Loss weighted = NllLoss{{.weight = weight}}(logp, target);
    CHECK(weighted.terms()[0].numerator.item() == 2 * 2 + 0.5 * 3 + 2 * 6);
    CHECK(weighted.terms()[0].denominator.item() == 4.5);

    const Loss masked = NllLoss{{.weight = weight, .ignore_index = 0}}(logp, target);
    CHECK(masked.terms()[0].numerator.item() == 16);
    CHECK(masked.terms()[0].denominator.item() == 4);

    const Loss summed = NllLoss{{.reduction = Reduction::sum}}(logp, target);
    CHECK_FALSE(summed.terms()[0].denominator.defined());
    CHECK(summed.item() == 11);
}

TEST_CASE("if every row is ignored, the mean is NaN, as in PyTorch, and the sum is 0") {
    const Tensor logp = Tensor::randn({3, 4}).to(device).detach();
    logp.requires_grad_();
    const Tensor target = classes({-100, -100, -100}).to(device);
    CHECK(std::isnan(nll_loss(logp, target).item()));
    const Loss loss = NllLoss{{.reduction = Reduction::sum}}(logp, target);
    CHECK(loss.item() == 0);
    loss.backward();
    CHECK(logp.grad().to_vector<float>() == std::vector<float>(12, 0));
}

TEST_CASE("losses can be added and multiplied by factors") {
    const Tensor x = Tensor::randn({5, 3}).to(device), t = Tensor::randn({5, 3}).to(device);
    const Tensor target = classes({0, 1, 2, 1, 0}).to(device);
    const Loss nll = nll_loss(x, target), mse = mse_loss(x, t);
    const Loss both = nll + 0.1 * mse;
    CHECK(both.terms().size() == 2);
    CHECK(both.item() == Approx(nll.item() + 0.1 * mse.item()));
    CHECK((2 * both * 3).item() == Approx(6 * both.item()));
    CHECK_THROWS_AS(Loss().value(), InvalidArgument);
}

TEST_CASE("the gradient of a sum of losses is the sum of their gradients") {
    const test::Input rows{{5, 3}};
    const Array a = test::make_values(rows, 1), b = test::make_values(rows, 2);
    Array target(reference::Sizes{5});
    target.v = {0, 1, 2, 1, 0};
    const auto value = [&](const std::vector<Array>& in) {
        const reference::Nll nll = reference::nll(reference::log_softmax(in[0], 1), target, Array(), -100);
        double square = 0;
        for (std::size_t i = 0; i < a.v.size(); ++i) square += (in[0].v[i] - b.v[i]) * (in[0].v[i] - b.v[i]);
        return Array(reference::Sizes{}, nll.numerator / nll.weight + 0.1 * square / 15);
    };
    const Tensor x = test::to_tensor(a, rows, DType::f64, device);
    const Tensor t = test::to_tensor(b, rows, DType::f64, device);
    x.requires_grad_();
    (cross_entropy(x, classes({0, 1, 2, 1, 0}).to(device)) + 0.1 * mse_loss(x, t)).backward();
    const Array expected = reference::finite_differences(value, {a}, {true}, Array(reference::Sizes{}, 1))[0];
    const auto found = x.grad().to_vector<double>();
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected.v[i]).margin(1e-8));
}

TEST_CASE("a target out of range is thrown when a value is read") {
    const Tensor logp = Tensor::randn({3, 4}).to(device);
    const Loss loss = nll_loss(logp, classes({0, 4, 1}).to(device));
    try {
        loss.item();
        FAIL("not thrown");
    } catch (const Error& error) {
        INFO(error.what());
        CHECK(std::string(error.what()).find('4') != std::string::npos);
        CHECK(std::string(error.what()).find("row 1") != std::string::npos);
    }
    // Work continues after the exception.
    CHECK(std::isfinite(nll_loss(logp, classes({0, 3, 1}).to(device)).item()));
    CHECK_THROWS_AS(nll_loss(logp, classes({0, -1, 1}).to(device)).item(), Error);
}

TEST_CASE("mismatched arguments are rejected at once") {
    const Tensor logp = Tensor::randn({3, 4});
    const Tensor target = classes({0, 1, 2});
    CHECK_THROWS_AS(nll_loss(Tensor(), target), InvalidArgument);
    CHECK_THROWS_AS(nll_loss(logp, Tensor()), InvalidArgument);
    CHECK_THROWS_AS(nll_loss(Tensor::randn({4}), target), InvalidArgument);
    CHECK_THROWS_AS(nll_loss(logp, classes({0, 1})), InvalidArgument);
    CHECK_THROWS_AS(nll_loss(logp, target.to(DType::f32)), InvalidArgument);
    CHECK_THROWS_AS(nll_loss(logp, target.to(DType::i32)), InvalidArgument);
    CHECK_THROWS_AS(nll_loss(logp, target.reshape({3, 1})), InvalidArgument);
    CHECK_THROWS_AS(NllLoss{{.weight = Tensor::zeros({3})}}(logp, target), InvalidArgument);
    CHECK_THROWS_AS(NllLoss{{.weight = Tensor::zeros({4}, DType::f64)}}(logp, target), InvalidArgument);
    CHECK_THROWS_AS(NllLoss{{.weight = Tensor::zeros({4}).requires_grad_()}}(logp, target), InvalidArgument);
    CHECK_THROWS_AS(cross_entropy(Tensor::randn({2, 3, 4}), target), InvalidArgument);
    CHECK_THROWS_AS(mse_loss(logp, Tensor::randn({3, 1})), InvalidArgument);
    CHECK_THROWS_AS(mse_loss(logp, logp.to(DType::f64)), InvalidArgument);
    CHECK_THROWS_AS(mse_loss(target, target), InvalidArgument);
}

TEST_CASE("host tensors are copied to the device of the others") {
    const Tensor logp = log_softmax(Tensor::randn({3, 4}), 1), there = logp.to(device);
    const Tensor target = classes({0, 1, 2}), values = Tensor::randn({3, 4}), weight = Tensor::rand({4});
    const auto check = [&](const Loss& found, const Loss& expected) {
        CHECK(found.value().device() == device);
        CHECK(found.item() == expected.item());
    };
    check(nll_loss(there, target), nll_loss(logp, target));
    check(nll_loss(logp, target.to(device)), nll_loss(logp, target));
    check(cross_entropy(there, target), cross_entropy(logp, target));
    check(NllLoss{{.weight = weight}}(there, target), NllLoss{{.weight = weight}}(logp, target));
    check(mse_loss(there, values), mse_loss(logp, values));
    check(mse_loss(logp, values.to(device)), mse_loss(logp, values));
    const Tensor learned = values.clone().requires_grad_();  // the gradient is returned to the host
    mse_loss(there, learned).backward();
    CHECK(learned.grad().device().is_host());
    CHECK_THROWS_AS(nll_loss(there, target.to(Device::cpu(1))), InvalidArgument);
}

TEST_CASE("losses of 16-bit numbers are means in f32") {
    const std::int64_t rows = 70000;  // more than f16 has, and more than bf16 counts
    for (const DType dtype : {DType::f16, DType::bf16}) {
        CAPTURE(name_of(dtype));
        const Tensor one = Tensor::ones({rows, 2}, dtype, device), zero = zeros_like(one);
        const Tensor row = Tensor::ones({rows}, DType::i64, device);
        const auto check = [&](const Loss& loss, double expected) {
            const Tensor value = loss.value();
            CHECK(value.dtype() == dtype);
            CHECK(value.item() == Approx(expected).epsilon(0.01));
        };
        check(mse_loss(one, zero), 1);
        check(l1_loss(one, zero), 1);
        check(smooth_l1_loss(one, zero), 0.5);
        check(huber_loss(one, zero), 0.5);
        check(kl_div(one, zero + 0.5), 0.5 * std::log(0.5) - 0.5);
        check(soft_margin_loss(one, one), std::log1p(std::exp(-1.0)));
        check(binary_cross_entropy(one * 0.5, one), std::log(2.0));
        check(binary_cross_entropy_with_logits(zero, one), std::log(2.0));
        check(nll_loss(one * -1, row), 1);
        check(cross_entropy(zero, row), std::log(2.0));
        check(CrossEntropyLoss{{.label_smoothing = 0.25}}(zero, row), std::log(2.0));
        check(multi_margin_loss(zero, row), 0.5);
        check(mean_loss(one), 1);
        const Loss dice = dice_loss((one * 0.5).reshape({1, 2, rows, 1}), one.reshape({1, 2, rows, 1}));
        CHECK(dice.value().item() == Approx(1.0 / 3).epsilon(0.01));
        const Tensor x = one.clone().detach().requires_grad_();
        mean_loss(x * 2).backward();
        CHECK(x.grad().dtype() == dtype);
        CHECK(amax(x.grad()).item() == Approx(1.0 / static_cast<double>(rows)).epsilon(0.05));
    }
}

TEST_CASE("means of the elements of a loss are the loss") {
    manual_seed(8);
    const Tensor x = Tensor::rand({4, 5}).to(device), t = Tensor::rand({4, 5}).to(device);
    const Tensor signs = where(t > 0.5, Tensor::full({1}, 1, DType::f32, device), -1);
    const Tensor target = classes({0, 4, 2, 1}).to(device), row_signs = signs.select(1, 0);
    const auto check = [](const Loss& loss, const Tensor& e, const Shape& shape) {
        CHECK(e.shape() == shape);
        CHECK(mean(e).item() == Approx(loss.item()));
    };
    check(l1_loss(x, t), l1_loss.elements(x, t), {4, 5});
    check(huber_loss(x, t), huber_loss.elements(x, t), {4, 5});
    check(binary_cross_entropy(x, t), binary_cross_entropy.elements(x, t), {4, 5});
    check(kl_div(x, t), kl_div.elements(x, t), {4, 5});
    check(gaussian_nll_loss(x, t, t + 1), gaussian_nll_loss.elements(x, t, t + 1), {4, 5});
    check(poisson_nll_loss(x, t), poisson_nll_loss.elements(x, t), {4, 5});
    check(margin_ranking_loss(x, t, signs), margin_ranking_loss.elements(x, t, signs), {4, 5});
    check(hinge_embedding_loss(x, signs), hinge_embedding_loss.elements(x, signs), {4, 5});
    check(soft_margin_loss(x, signs), soft_margin_loss.elements(x, signs), {4, 5});
    check(nll_loss(x, target), nll_loss.elements(x, target), {4});
    check(cross_entropy(x, softmax(t, 1)), cross_entropy.elements(x, softmax(t, 1)), {4});
    check(cosine_embedding_loss(x, t, row_signs), cosine_embedding_loss.elements(x, t, row_signs), {4});
    check(triplet_margin_loss(x, t, t + x), triplet_margin_loss.elements(x, t, t + x), {4});
    check(multilabel_soft_margin_loss(x, t), multilabel_soft_margin_loss.elements(x, t), {4});
    check(multi_margin_loss(x, target), multi_margin_loss.elements(x, target), {4});
    CHECK(l1_loss.elements(x.to(DType::f16), t.to(DType::f16)).dtype() == DType::f16);
    CHECK_THROWS_AS(mse_loss.elements(x, t.select(0, 0)), InvalidArgument);
    CHECK_THROWS_AS(nll_loss.elements(x, x), InvalidArgument);
}
