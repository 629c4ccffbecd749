// NaN, infinities, equal extremes, scalars and empty tensors, in every memory layout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/check_op.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("extremes, norms and moments of special values") {
    const auto nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    using Floats = std::vector<float>;
    using Numbers = std::vector<std::int64_t>;
    const Tensor x = Tensor::from(Floats{1, nan, 3, nan, 2, 2, 1, 2, -inf, inf, -inf, inf}, {4, 3}).requires_grad_();
    const auto [largest, where_largest] = (max)(x, 1);
    CHECK(std::isnan(largest.to_vector<float>()[0]));
    CHECK(where_largest.to_vector<std::int64_t>() == Numbers{1, 0, 1, 0});
    CHECK((min)(x, 1).indices.to_vector<std::int64_t>() == Numbers{1, 0, 2, 1});
    CHECK(argmin(x, 1).to_vector<std::int64_t>() == Numbers{1, 0, 2, 1});
    CHECK(amax(x.slice(0, 2, 4), 1).to_vector<float>() == Floats{2, inf});

    // Equal extremes: the first one has the gradient of max, all share that of amax.
    Tensor equal = Tensor::from(Floats{2, 5, 5, 5}, {2, 2}).requires_grad_();
    sum((max)(equal, 1).values).backward();
    CHECK(equal.grad().to_vector<float>() == Floats{0, 1, 1, 0});
    equal = equal.detach().clone().requires_grad_();
    amax(equal).backward();
    const float third = 1.0F / 3;
    CHECK(equal.grad().to_vector<float>() == Floats{0, third, third, third});

    // At 0 the norm and the deviation have the gradient 0.
    Tensor zero = Tensor::zeros({3}).requires_grad_();
    (norm(zero) + lockstep::std(zero)).backward();
    CHECK(zero.grad().to_vector<float>() == Floats{0, 0, 0});
    CHECK(std::isnan(var(Tensor::ones({1})).item()));
    CHECK(var(Tensor::from(Floats{1, 3, nan}, {3}).slice(0, 0, 2), {}, 0).item() == 1);

    CHECK(std::abs(logsumexp(Tensor::from(Floats{1000, 1000}, {2}), 0).item() - 1000.693147) < 1e-4);
    CHECK(logsumexp(Tensor::from(Floats{-inf, -inf}, {2}), 0).item() == -inf);
    CHECK(logsumexp(Tensor::from(Floats{-inf, inf}, {2}), 0).item() == inf);
    CHECK(std::isnan(logsumexp(Tensor::from(Floats{nan, 1}, {2}), 0).item()));

    // Scalars and empty tensors.
    CHECK((max)(Tensor::scalar(3), -1).values.item() == 3);
    CHECK(amin(Tensor::scalar(3)).item() == 3);
    CHECK(norm(Tensor::scalar(-3)).item() == 3);
    CHECK(any(Tensor::zeros({2, 0}), 1).to(DType::i64).to_vector<std::int64_t>() == Numbers{0, 0});
    CHECK(all(Tensor::zeros({2, 0}), 1).to(DType::i64).to_vector<std::int64_t>() == Numbers{1, 1});
    CHECK(any(Tensor::from(Floats{0, nan}, {2})).item() == 1);
    CHECK(all(Tensor::from(Numbers{3, -1}, {2})).item() == 1);
    CHECK(message_of<InvalidArgument>([] {
              (max)(Tensor::zeros({2, 0}), 1);
          }) == "max: dimension 1 of (2, 0) is empty; expected at least one element");
    CHECK(message_of<InvalidArgument>([] { norm(Tensor::zeros({2}), 3); }) ==
          "norm: invalid order (3); expected 1, 2 or infinity");
    CHECK_THROWS_AS(amax(Tensor::zeros({0})), InvalidArgument);
    CHECK_THROWS_AS(amax(Tensor::zeros({2, 1}), {0, -2}), InvalidArgument);
    CHECK_THROWS_AS(any(Tensor::zeros({2, 1}), {1, 1}), InvalidArgument);
    CHECK_THROWS_AS(var(Tensor::zeros({2}), 1), InvalidArgument);
    CHECK_THROWS_AS(outer(Tensor::zeros({2, 2}), Tensor::zeros({2})), InvalidArgument);
}

TEST_CASE("largest and smallest elements of rows of any size") {
    // In each row, one place has the extreme, or a NaN, or the first of two zeros.
    const auto check = [](auto zero) {
        using T = decltype(zero);
        for (const std::int64_t size :
             {1, 2, 17, 31, 32, 33, 63, 64, 65, 100, 1023, 1024, 1025, 3072, 4095, 4096, 5001})
            for (const double sign : {1.0, -1.0}) {
                const auto n = static_cast<std::size_t>(size);
                std::vector<std::size_t> places{n - 1};
                for (std::size_t place = 0; place + 1 < n; place += n / 50 + 1) places.push_back(place);
                std::vector<T> extremes, zeros, unordered;
                for (const std::size_t place : places)
                    for (std::size_t i = 0; i < n; ++i) {
                        const double other = -sign * (1 + static_cast<double>(i * 7 % n));
                        extremes.push_back(static_cast<T>(i == place ? sign : other));
                        zeros.push_back(static_cast<T>(i == place ? -0.0 : i > place ? 0.0 : other));
                        unordered.push_back(i == place ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(other));
                    }
                const auto found = [&](const std::vector<T>& values) {
                    const Tensor x =
                        Tensor::from(values, {static_cast<std::int64_t>(places.size()), size}).to(Device::cpu(0));
                    return (sign > 0 ? amax(x, 1) : amin(x, 1)).template to_vector<T>();
                };
                INFO("rows of " << size << ", sign " << sign);
                CHECK(found(extremes) == std::vector<T>(places.size(), static_cast<T>(sign)));
                const auto is_negative_zero = [](T value) { return value == 0 && std::signbit(value); };
                const std::vector<T> of_zeros = found(zeros), of_unordered = found(unordered);
                CHECK(std::all_of(of_zeros.begin(), of_zeros.end(), is_negative_zero));
                CHECK(std::all_of(of_unordered.begin(), of_unordered.end(), [](T value) { return value != value; }));
            }
    };
    check(0.0F);
    check(0.0);
}

TEST_CASE("pooling propagates NaN in every layout, as in PyTorch") {
    // The square root makes some elements NaN in place.
    for (const std::int64_t channels : {1, 10, 16, 20, 32})
        for (const std::int64_t window : {2, 3}) {
            INFO(channels << " channels, windows of " << window);
            manual_seed(4);
            Tensor x = Tensor::randn({2, channels, 7, 9}).to(Device::cpu(0)) + 1.0;
            x = channels == 1 ? x : convolved(x);
            const Tensor lying = sqrt(x).detach(), plain = lying.contiguous().clone().detach();
            lying.requires_grad_();
            plain.requires_grad_();
            const int size = static_cast<int>(window);
            const Tensor found = max_pool2d(lying, size, Pair(2), size / 2),
                         y = max_pool2d(plain, size, Pair(2), size / 2);
            CHECK(largest_error(to_array(found), to_array(y)) == 0);
            std::vector<float> values = y.detach().to_vector<float>();
            CHECK(std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); }));
            const Tensor dy = Tensor::randn(y.shape()).to(Device::cpu(0));
            found.backward(dy);
            y.backward(dy);
            CHECK(largest_error(to_array(lying.grad()), to_array(plain.grad())) == 0);
        }
}

TEST_CASE("max pooling of -infinity chooses the first element of each window, as in PyTorch") {
    const Tensor x = Tensor::full({1, 1, 4, 4}, -INFINITY).requires_grad_();
    const Tensor y = max_pool2d(x, 3, Pair(2), 1);
    for (const float value : y.to_vector<float>()) CHECK(value == -INFINITY);
    y.backward(Tensor::from(std::vector<float>{1, 2, 3, 4}, {1, 1, 2, 2}));
    CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("non-finite numbers do not reach the padding of a blocked tensor") {
    const Tensor x = convolved(Tensor::randn({2, 10, 4, 4}).to(Device::cpu(0)));
    const Tensor w = Tensor::full({16, 10, 1, 1}, 1, DType::f32, Device::cpu(0));
    const Tensor spoiled = conv2d(x * INFINITY, w) * 0.0;  // all NaN
    CHECK(std::isnan(sum(spoiled).item()));
    const Tensor ten_channels = conv2d(Tensor::full({1, 1, 8, 8}, 1, DType::f32, Device::cpu(0)),
                                       Tensor::full({10, 1, 5, 5}, 1, DType::f32, Device::cpu(0)));
    const Tensor y = conv2d(ten_channels * INFINITY, Tensor::full({16, 10, 1, 1}, 1, DType::f32, Device::cpu(0)));
    for (const float value : y.to_vector<float>()) CHECK(value == INFINITY);
}
