// Order of special values and of equal elements, empty tensors and refused arguments of sort, topk and cumsum.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::message_of;

namespace {

using Positions = std::vector<std::int64_t>;

constexpr double inf = INFINITY, not_a_number = NAN;

Positions order(const Tensor& x, bool descending) { return argsort(x, 0, descending).to_vector<std::int64_t>(); }

struct Sorted {
    Linear fc{3, 3};
    int dim = 1;
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) {
        const Tensor y = fc(x);
        const Tensor sorted = lockstep::sort(y, dim).values;
        return sorted + cumsum(y, 1);
    }
};

}  // namespace

TEST_CASE("sort puts NaN last, or first if descending, and keeps the order of equal elements") {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
        for (const Device device : {Device::host(), Device::cpu(0)}) {
            CAPTURE(name_of(dtype), device.str());
            const auto tensor = [&](const std::vector<double>& values) {
                return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(dtype).to(device);
            };
            const Tensor special = tensor({not_a_number, 1, inf, -inf, not_a_number, 0, inf});
            CHECK(order(special, false) == Positions{3, 5, 1, 2, 6, 0, 4});
            CHECK(order(special, true) == Positions{0, 4, 2, 6, 1, 5, 3});
            CHECK(order(tensor({-inf, not_a_number, -inf}), true) == Positions{1, 0, 2});
            const Tensor equal = tensor({2, 1, 2, 1, 0.0, -0.0, 2, 1, 2});
            CHECK(order(equal, false) == Positions{4, 5, 1, 3, 7, 0, 2, 6, 8});
            CHECK(order(equal, true) == Positions{0, 2, 6, 8, 1, 3, 7, 4, 5});
        }
    std::vector<float> many(1000);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i * i % 331);
    std::vector<float> expected = many;
    std::stable_sort(expected.begin(), expected.end());
    CHECK(lockstep::sort(Tensor::from(many, {1000})).values.to_vector<float>() == expected);
}

TEST_CASE("topk of a few elements has the order of a stable sort") {
    std::vector<float> values(400);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 97) - 40;
    values[7] = values[301] = NAN;
    values[9] = INFINITY;
    values[11] = -INFINITY;
    for (const bool ascending_values : {false, true}) {  // the latter replace all that were found before
        if (ascending_values) std::stable_sort(values.begin() + 20, values.end() - 120);
        for (const bool largest : {true, false}) {
            Positions expected(values.size());
            std::iota(expected.begin(), expected.end(), 0);
            const auto rank = [&](std::int64_t i) {
                const float value = values[static_cast<std::size_t>(i)];
                return std::isnan(value) ? std::pair(1, 0.0F) : std::pair(0, value);
            };
            std::stable_sort(expected.begin(), expected.end(), [&](std::int64_t a, std::int64_t b) {
                return largest ? rank(a) > rank(b) : rank(a) < rank(b);
            });
            for (const std::int64_t k : {1, 3, 40, 50, 51, 400}) {
                CAPTURE(ascending_values, largest, k);
                const Tensor line = Tensor::from(values, {1, 400}), column = Tensor::from(values, {400, 1});
                const Positions first(expected.begin(), expected.begin() + k);
                CHECK(topk(line, k, 1, largest).indices.to_vector<std::int64_t>() == first);
                CHECK(topk(column.to(DType::f64), k, 0, largest).indices.to_vector<std::int64_t>() == first);
            }
        }
    }
}

TEST_CASE("sort, topk and scans of empty tensors and scalars, and arguments that are refused") {
    const Tensor x = Tensor::randn({2, 5}), none = Tensor::zeros({0, 5});
    CHECK(lockstep::sort(none).values.shape() == Shape{0, 5});
    CHECK(topk(none, 2).indices.shape() == Shape{0, 2});
    CHECK(topk(x, 0).values.shape() == Shape{2, 0});
    CHECK(lockstep::sort(Tensor::scalar(3)).values.item() == 3);
    CHECK(argsort(Tensor::scalar(3)).to_vector<std::int64_t>() == Positions{0});
    CHECK(cumsum(Tensor::zeros({3, 0}), 1).shape() == Shape{3, 0});
    CHECK(prod(Tensor::zeros({3, 0}), 1).to_vector<float>() == std::vector<float>(3, 1));
    CHECK(prod(Tensor::zeros({0})).item() == 1);
    CHECK(message_of<InvalidArgument>([&] { topk(x, 6); }) ==
          "topk: invalid k (6); expected 0 to 5, the size of dimension 1 of (2, 5)");
    CHECK_THROWS_AS(lockstep::sort(x, 2), InvalidArgument);
    CHECK_THROWS_AS(cumsum(x, -3), InvalidArgument);
    CHECK_THROWS_AS(pixel_shuffle(Tensor::zeros({1, 6, 2, 2}), 2), InvalidArgument);
    CHECK_THROWS_AS(pixel_unshuffle(Tensor::zeros({1, 6, 3, 2}), 2), InvalidArgument);
    // A gradient of 0 factors: the product of the others.
    const Tensor factors = Tensor::from(std::vector<float>{2, 0, 3}, {3}).requires_grad_();
    prod(factors).backward();
    CHECK(factors.grad().to_vector<float>() == std::vector<float>{0, 6, 0});
    const Tensor past = cumsum(Tensor::from(std::vector<float>{1, std::numeric_limits<float>::infinity(), 2}, {3}), 0);
    CHECK(past.to_vector<float>()[0] == 1);
    CHECK(std::isinf(past.to_vector<float>()[2]));
}

TEST_CASE("within a step, rows are sorted and the batch is not") {
    const Tensor x = Tensor::randn({6, 3}), t = Tensor::randn({6, 3});
    Sorted plain;
    DataParallel<Sorted> model(plain, {Device::cpu(0)});
    SGD sgd(model, {.lr = 0.1});
    const double expected = mse_loss(plain.forward(x), t).item();
    CHECK(model.step(sgd, x, t, mse_loss).item() == Approx(expected));
    Sorted wrong;
    wrong.dim = 0;
    DataParallel<Sorted> refused(wrong, {Device::cpu(0)});
    SGD other(refused, {.lr = 0.1});
    CHECK_THAT(message_of<InvalidArgument>([&] { (void)refused.step(other, x, t, mse_loss).item(); }),
               test::contains("sort: dimension 0 of a batch cannot be sorted"));
}
