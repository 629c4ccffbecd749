// Averages of weights, compared with loops in double, of plain and of wrapped models.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ops/averaged_model.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

struct AveragedNet {
    Linear first{3, 4}, second{4, 3};
    BatchNorm1d norm{4};
    LOCKSTEP_MEMBERS(first, second, norm)
    Tensor forward(const Tensor& x) { return second(norm(first(x))); }
};

std::vector<double> numbers(AveragedNet& net, bool parameters) {
    std::vector<double> all;
    for (const NamedTensor& named : named_tensors(net)) {
        if (named.is_parameter != parameters) continue;
        for (const float value : named.member->tensor().to(Device::host()).to(DType::f32).to_vector<float>())
            all.push_back(value);
    }
    return all;
}

void check_near(const std::vector<double>& found, const std::vector<double>& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).margin(1e-6));
}

/// Trains on `devices`, and compares the average with that of the weights after each step.
void check_average(const AveragingOptions& options, int devices) {
    manual_seed(5);
    const AveragedNet net;
    DataParallel<AveragedNet> model(net, test::cpu_devices(devices), {.shards = 2});
    SGD sgd(model, {.lr = 0.1});
    AveragedModel<AveragedNet> average(*model, options);
    std::vector<double> expected, buffers;
    for (int step = 0; step < 4; ++step) {
        const Tensor x = Tensor::randn({6, 3});
        model.step(sgd, x, x * 0.5, mse_loss);
        average.update(*model);
        const std::vector<double> now = numbers(*model, true), state = numbers(*model, false);
        const double weight = options.ema_decay ? 1 - *options.ema_decay : 1.0 / (step + 1);
        if (step == 0) {
            expected = now;
            buffers = state;
        } else {
            for (std::size_t i = 0; i < now.size(); ++i) expected[i] += weight * (now[i] - expected[i]);
            for (std::size_t i = 0; i < state.size(); ++i)
                buffers[i] = options.use_buffers && i < 8 ? buffers[i] + weight * (state[i] - buffers[i]) : state[i];
        }
    }
    CHECK(average.updates() == 4);
    check_near(numbers(*average, true), expected);
    check_near(numbers(*average, false), buffers);
    CHECK(average->norm.num_batches_tracked->tensor().item() == 4);
}

}  // namespace

TEST_CASE("averages of weights, equal and exponential, with and without buffers") {
    for (const int devices : {1, 2}) {
        check_average({}, devices);
        check_average({.ema_decay = 0.75}, devices);
        check_average({.ema_decay = 0.75, .use_buffers = true}, devices);
        check_average({.use_buffers = true}, devices);
    }
}

TEST_CASE("an average neither changes the model nor follows it") {
    manual_seed(6);
    AveragedNet net;
    AveragedModel<AveragedNet> average(net, {.ema_decay = 0.5});
    const std::vector<double> before = numbers(net, true);
    average.update(net);
    net.first.weight.tensor().detach().fill_(3);
    CHECK(numbers(*average, true) == before);
    average.update(net);
    CHECK(average->first.weight.tensor().to_vector<float>()[0] == Approx((before[0] + 3) / 2));
    CHECK(net.first.weight.tensor().to_vector<float>()[0] == 3);
    // The average can be trained and saved like any module.
    sum(average->forward(Tensor::ones({2, 3}))).backward();
    CHECK(average->first.weight.tensor().grad().defined());
}

TEST_CASE("models of another structure and invalid decays are refused") {
    CHECK(test::message_of<InvalidArgument>([] { AveragedModel<Linear>(Linear(2, 2), {.ema_decay = 1.5}); }) ==
          "AveragedModel: invalid ema_decay (1.5); expected [0, 1]");
    AveragedModel<Linear> average(Linear(2, 2));
    Linear wider(2, 3);
    CHECK(
        test::message_of<InvalidArgument>([&] { average.update(wider); }) ==
        "AveragedModel: the model has weight f32 (3, 2); expected weight f32 (2, 2), as in the model that was copied");
    CHECK(average.updates() == 0);
    CHECK(test::message_of<InvalidArgument>([&] { average.set_updates(-1); }) ==
          "AveragedModel: invalid number of updates (-1); expected 0 or more");
}
