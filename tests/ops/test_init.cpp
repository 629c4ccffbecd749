// Initial values: distributions by their moments and limits, structures exactly.
#include "lockstep/ops/init.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::refusal_of;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<double> numbers_in(const Tensor& tensor) { return tensor.to(DType::f64).to_vector<double>(); }

/// The largest distance between the distribution of the numbers and `below`, times the square root of their count: more
/// than 1.95 in one of a thousand samples.
template <class Below>
double kolmogorov(std::vector<double> x, Below below) {
    std::sort(x.begin(), x.end());
    const auto count = static_cast<double>(x.size());
    double distance = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = below(x[i]);
        distance = std::max({distance, std::abs(expected - static_cast<double>(i) / count),
                             std::abs(expected - static_cast<double>(i + 1) / count)});
    }
    return distance * std::sqrt(count);
}

double normal_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

void check_normal(const Tensor& tensor, double mean, double std) {
    CHECK(kolmogorov(numbers_in(tensor), [&](double x) { return normal_below((x - mean) / std); }) < 1.95);
}

void check_uniform(const Tensor& tensor, double a, double b) {
    const std::vector<double> x = numbers_in(tensor);
    CHECK(kolmogorov(x, [&](double value) { return (value - a) / (b - a); }) < 1.95);
    CHECK(*std::min_element(x.begin(), x.end()) >= a * (1 + 1e-6) - 1e-12);
    CHECK(*std::max_element(x.begin(), x.end()) <= b * (1 + 1e-6) + 1e-12);
}

struct Net {
    Linear fc{3, 2};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const { return fc(x); }
};

}  // namespace

TEST_CASE("initial values: uniform, normal and truncated normal distributions") {
    manual_seed(71);
    const Tensor x = Tensor::empty({100, 200});
    check_uniform(init::uniform_(x), 0, 1);
    check_uniform(init::uniform_(x, -3, 0.5), -3, 0.5);
    check_normal(init::normal_(x), 0, 1);
    check_normal(init::normal_(x, 5, 0.1), 5, 0.1);
    for (const init::TruncatedNormal& how :
         {init::TruncatedNormal{}, init::TruncatedNormal{.mean = 1, .std = 2, .a = 0.5, .b = infinity},
          init::TruncatedNormal{.std = 0.02}}) {
        init::trunc_normal_(x, how);
        const double low = normal_below((how.a - how.mean) / how.std),
                     high = normal_below((how.b - how.mean) / how.std);
        CHECK(kolmogorov(numbers_in(x), [&](double value) {
                  return (normal_below((value - how.mean) / how.std) - low) / (high - low);
              }) < 1.95);
        for (const double value : numbers_in(x)) REQUIRE((value >= how.a && value <= how.b));
    }
}

TEST_CASE("initial values: Xavier's and Kaiming's bounds by fan and gain") {
    manual_seed(72);
    const Tensor matrix = Tensor::empty({100, 200}), filters = Tensor::empty({60, 20, 3, 5});  // fans: 300 and 900
    check_uniform(init::xavier_uniform_(matrix), -std::sqrt(6.0 / 300), std::sqrt(6.0 / 300));
    check_uniform(init::xavier_uniform_(filters, 2), -2 * std::sqrt(6.0 / 1200), 2 * std::sqrt(6.0 / 1200));
    check_normal(init::xavier_normal_(filters, 0.5), 0, 0.5 * std::sqrt(2.0 / 1200));
    check_uniform(init::kaiming_uniform_(filters), -std::sqrt(6.0 / 300), std::sqrt(6.0 / 300));
    check_uniform(init::kaiming_uniform_(matrix, {.a = std::sqrt(5.0)}), -1 / std::sqrt(200.0), 1 / std::sqrt(200.0));
    check_normal(
        init::kaiming_normal_(filters, {.mode = init::FanMode::fan_out, .nonlinearity = init::Nonlinearity::relu}), 0,
        std::sqrt(2.0 / 900));
    check_normal(init::kaiming_normal_(matrix, {.nonlinearity = init::Nonlinearity::tanh}), 0,
                 5.0 / 3 / std::sqrt(200.0));
    using enum init::Nonlinearity;
    for (const auto nonlinearity : {linear, conv, sigmoid}) CHECK(init::calculate_gain(nonlinearity) == 1);
    CHECK(init::calculate_gain(selu) == 0.75);
    CHECK(init::calculate_gain(leaky_relu) == std::sqrt(2 / (1 + 1e-4)));
    CHECK(init::calculate_gain(leaky_relu, 3) == std::sqrt(0.2));
    CHECK(init::calculate_gain(relu) == std::sqrt(2.0));
}

TEST_CASE("initial values: orthogonal matrices") {
    manual_seed(73);
    for (const Shape& shape : {Shape{7, 7}, Shape{20, 6}, Shape{6, 20}, Shape{8, 3, 2, 2}, Shape{1, 5}, Shape{5, 1}}) {
        INFO(shape.str());
        const Tensor x = Tensor::empty(shape, DType::f64);
        const std::vector<double> q = numbers_in(init::orthogonal_(x, 3));
        const auto rows = static_cast<std::size_t>(shape[0]), columns = q.size() / rows;
        const bool by_rows = rows <= columns;
        const std::size_t count = std::min(rows, columns), length = std::max(rows, columns);
        for (std::size_t i = 0; i < count; ++i)
            for (std::size_t k = 0; k < count; ++k) {
                double product = 0;
                for (std::size_t j = 0; j < length; ++j)
                    product +=
                        by_rows ? q[i * columns + j] * q[k * columns + j] : q[j * columns + i] * q[j * columns + k];
                CHECK(std::abs(product - (i == k ? 9 : 0)) < 1e-12);
            }
    }
    // Uniform over all rotations and reflections: so is the sign of every element.
    int positive = 0;
    for (int i = 0; i < 400; ++i) positive += numbers_in(init::orthogonal_(Tensor::empty({3, 3})))[0] > 0 ? 1 : 0;
    CHECK(std::abs(positive - 200) < 50);
}

TEST_CASE("initial values: constants, identities and sparse matrices") {
    manual_seed(74);
    CHECK(numbers_in(init::constant_(Tensor::empty({3}), -2.5)) == std::vector<double>(3, -2.5));
    CHECK(numbers_in(init::zeros_(Tensor::ones({3}))) == std::vector<double>(3, 0));
    CHECK(numbers_in(init::ones_(Tensor::empty({3}))) == std::vector<double>(3, 1));
    CHECK(numbers_in(init::eye_(Tensor::empty({2, 3}))) == std::vector<double>{1, 0, 0, 0, 1, 0});
    // (4, 2, 3) in two groups: outputs 0 and 2 pass on channel 0, outputs 1 and 3 channel 1.
    std::vector<double> dirac(24);
    dirac[0 * 6 + 0 * 3 + 1] = dirac[1 * 6 + 1 * 3 + 1] = dirac[2 * 6 + 0 * 3 + 1] = dirac[3 * 6 + 1 * 3 + 1] = 1;
    CHECK(numbers_in(init::dirac_(Tensor::empty({4, 2, 3}), 2)) == dirac);
    const Tensor image = Tensor::randn({1, 3, 5, 6});
    const Tensor same = conv2d(image, init::dirac_(Tensor::empty({3, 3, 3, 3})), {}, 1, 1);
    CHECK(same.to_vector<float>() == image.to_vector<float>());
    const std::vector<double> sparse = numbers_in(init::sparse_(Tensor::empty({50, 40}), 0.33, 2));
    std::vector<double> others;
    for (std::size_t column = 0; column < 40; ++column) {
        int zeros = 0;
        for (std::size_t row = 0; row < 50; ++row) {
            const double value = sparse[row * 40 + column];
            if (value == 0)
                ++zeros;
            else
                others.push_back(value);
        }
        CHECK(zeros == 17);
    }
    CHECK(kolmogorov(others, [](double x) { return normal_below(x / 2); }) < 1.95);
}

TEST_CASE("initial values: seeds, dtypes, devices, parameters and wrapped models") {
    manual_seed(75);
    const auto first = numbers_in(init::normal_(Tensor::empty({9})));
    CHECK(numbers_in(init::normal_(Tensor::empty({9}))) != first);
    manual_seed(75);
    const Tensor on_device = Tensor::empty({3, 3}, DType::f32, Device::cpu(1)).transpose(0, 1);
    CHECK(numbers_in(init::normal_(on_device)) == first);
    manual_seed(75);
    CHECK(numbers_in(init::normal_(Tensor::empty({9}, DType::f16)))[0] ==
          Tensor::full({1}, first[0]).to(DType::f16).to(DType::f64).item());

    const Net start;
    DataParallel model(Net(start), Devices({Device::cpu(0), Device::cpu(1)}));
    SGD sgd(model, {.lr = 0.1});
    model.step(sgd, Tensor::ones({4, 3}), Tensor::zeros({4, 2}), mse_loss);
    init::constant_(model->fc.weight, 0.25);
    init::zeros_(*model->fc.bias);
    CHECK(model->fc.weight->requires_grad());
    CHECK(model.forward(Tensor::ones({4, 3})).to_vector<float>() == std::vector<float>(8, 0.75f));
    model.engine().verify_replicas();
}

TEST_CASE("initial values: bad arguments are refused, and the tensor is unchanged") {
    const Tensor x = Tensor::full({2, 3}, 7), row = Tensor::full({3}, 7), whole = Tensor::full({2, 3}, 7, DType::i64);
    const auto refused = [&](auto call, const char* what) {
        CHECK_THAT(refusal_of<InvalidArgument>(call), contains(what));
        CHECK(x.to_vector<float>() == std::vector<float>(6, 7));
    };
    refused([&] { init::normal_(Tensor()); }, "normal_: the tensor is undefined");
    refused([&] { init::uniform_(whole); }, "uniform_: dtype i64 is not floating");
    refused([&] { init::uniform_(x, 1, 0); }, "uniform_: invalid range, 1 to 0");
    refused([&] { init::uniform_(x, 0, infinity); }, "uniform_: invalid range");
    refused([&] { init::normal_(x, 0, -1); }, "normal_: invalid std (-1)");
    refused([&] { init::normal_(x, NAN); }, "normal_: invalid mean");
    refused([&] { init::trunc_normal_(x, {.a = 4, .b = 5}); }, "trunc_normal_: [4, 5] has less than 1%");
    refused([&] { init::trunc_normal_(x, {.a = 1, .b = -1}); }, "trunc_normal_: [1, -1]");
    refused([&] { init::eye_(row); }, "eye_: the tensor has shape (3,); expected a matrix");
    refused([&] { init::dirac_(x); }, "dirac_: the tensor has shape (2, 3)");
    refused([&] { init::dirac_(Tensor::empty({3, 1, 1}), 2); }, "dirac_: 2 groups of 3 output channels");
    refused([&] { init::xavier_normal_(row); }, "xavier_normal_: the tensor has shape (3,); expected at least two");
    refused([&] { init::kaiming_uniform_(x, {.a = infinity}); }, "kaiming_uniform_: invalid a");
    refused([&] { init::orthogonal_(row); }, "orthogonal_: the tensor has shape (3,)");
    refused([&] { init::sparse_(x, 1.5); }, "sparse_: invalid sparsity (1.5)");
}
