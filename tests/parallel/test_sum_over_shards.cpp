// Sums over shards in the middle of forward, with gradients: 8 shards on 1, 2, 3 and 8 devices compared with the whole
// batch.
#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;
namespace reference = ls::reference;

namespace {

/// Subtracts the mean of the whole batch between two layers, so that rows interact.
struct Centred {
    ls::Linear first{4, 6}, second{6, 3};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) const {
        const ls::Tensor hidden = first(x);
        const ls::Tensor rows = ls::Tensor::full({1}, static_cast<double>(x.size(0)));
        const auto pooled = ls::sum_over_shards({ls::sum(hidden, 0), rows});
        return second(ls::square(hidden - pooled[0] / pooled[1]));
    }
};

struct Whole {
    double loss = 0;
    std::vector<Array> gradients;  ///< first.weight, first.bias, second.weight, second.bias
    Array input_gradient;
};

/// Mean squared error of the whole batch, and its gradients, in double precision.
Whole whole_batch(const std::vector<Array>& p, const Array& x, const Array& y) {
    const std::ptrdiff_t rows = x.dim(0), width = p[0].dim(0);
    Array centred = reference::linear(x, p[0], p[1]);
    for (std::ptrdiff_t c = 0; c < width; ++c) {
        double mean = 0;
        for (std::ptrdiff_t n = 0; n < rows; ++n) mean += centred[n * width + c] / static_cast<double>(rows);
        for (std::ptrdiff_t n = 0; n < rows; ++n) centred[n * width + c] -= mean;
    }
    Array squared = centred;
    for (double& value : squared.v) value *= value;
    Array dy = reference::linear(squared, p[2], p[3]);
    Whole result;
    for (std::ptrdiff_t i = 0; i < dy.size(); ++i) {
        const double difference = dy[i] - y[i];
        result.loss += difference * difference / static_cast<double>(dy.size());
        dy[i] = 2 * difference / static_cast<double>(dy.size());
    }
    const auto second = reference::linear_gradients(squared, p[2], dy);
    Array dh = second[0];
    for (std::ptrdiff_t i = 0; i < dh.size(); ++i) dh[i] *= 2 * centred[i];
    for (std::ptrdiff_t c = 0; c < width; ++c) {
        double mean = 0;
        for (std::ptrdiff_t n = 0; n < rows; ++n) mean += dh[n * width + c] / static_cast<double>(rows);
        for (std::ptrdiff_t n = 0; n < rows; ++n) dh[n * width + c] -= mean;
    }
    const auto first = reference::linear_gradients(x, p[0], dh);
    result.gradients = {first[1], first[2], second[1], second[2]};
    result.input_gradient = first[0];
    return result;
}

}  // namespace

TEST_CASE("a sum over 8 shards in forward is that of the batch on any number of devices, with its gradient") {
    ls::manual_seed(31);
    Centred net;
    for (const std::int64_t rows : {16, 20, 15, 5, 1}) {
        const ls::Tensor x = ls::Tensor::randn({rows, 4}), y = ls::Tensor::randn({rows, 3});
        const Whole expected = whole_batch(parameters_of(net), array_of(x), array_of(y));
        std::vector<std::vector<Array>> after;
        for (const int k : {1, 2, 3, 8}) {
            INFO(rows << " rows on " << k << " devices");
            constexpr double rate = 1 << 30;  // the parameters' own digits do not matter in the difference
            ls::DataParallel<Centred> model(net, cpu_devices(k), {.shards = 8});
            ls::SGD sgd(model, {.lr = rate});
            CHECK(model.step(sgd, x, y, ls::mse_loss).item() == Approx(expected.loss).epsilon(1e-5));
            after.push_back(parameters_of(*model));
            if (rows > 1)  // the mean of one row is the row itself, and only the last bias has a gradient
                CHECK(relative_error(difference(parameters_of(net), after.back(), 1 / rate), expected.gradients) <
                      2e-6);
            CHECK(relative_error(after.back(), after.front()) == 0);  // bit-identical

            ls::DataParallel<Centred> longer(net, cpu_devices(k), {.shards = 8});
            const ls::Tensor leaf = x.clone().requires_grad_();
            ls::mse_loss(longer(leaf), y.to(ls::Device::cpu(0))).backward();
            CHECK(relative_error(gradients_of(*longer), expected.gradients) < 2e-6);
            if (rows > 1) CHECK(relative_error({array_of(leaf.grad())}, {expected.input_gradient}) < 2e-6);
        }
    }
}
