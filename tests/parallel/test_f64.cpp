// A model of f64 parameters is trained in double precision throughout: learning rate, momentum, decay and the reported
// loss, in every form of a step. (Several processes: test_ddp.)
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/double_precision.h"
#include "lockstep/tests/fixtures/eight_devices.h"

namespace ls = lockstep;
using namespace lockstep::test;

TEST_CASE("a step of an f64 model has f64 settings and loss, on any devices and in microbatches") {
    const F64Data data;
    const F64Training expected(data);
    for (const int count : {1, 3})
        for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise})
            for (const int parts : {1, 2}) {
                INFO(count << " devices, " << parts << " microbatches");
                ls::DataParallel<F64Regression> model(data.net, ls::test::cpu_devices(count), {.reduction = mode});
                ls::SGD sgd(model, f64_settings);
                std::vector<double> losses;
                for (int step = 0; step < F64Training::steps; ++step)
                    losses.push_back(
                        model.step(sgd, data.x, data.y, ls::mse_loss, {.accumulation_steps = parts}).item());
                CHECK(largest_difference(losses, expected.losses) < f64_rounding);
                CHECK(largest_difference(f64_parameters_of(*model), expected.parameters) < f64_rounding);
            }
}

TEST_CASE("the manual step and a plain module also compute in f64") {
    const F64Data data;
    const F64Training expected(data);
    ls::DataParallel<F64Regression> model(data.net, ls::test::cpu_devices(2));
    ls::SGD sgd(model, f64_settings);
    F64Regression plain = data.net;
    ls::SGD plain_sgd(plain, f64_settings);
    std::vector<double> losses, plain_losses;
    for (int step = 0; step < F64Training::steps; ++step) {
        sgd.zero_grad();
        const ls::Tensor output = model(data.x);
        const ls::Loss loss = ls::mse_loss(output, data.y.to(output.device()));
        loss.backward();
        sgd.step();
        losses.push_back(loss.item());
        plain_sgd.zero_grad();
        const ls::Loss plain_loss = ls::mse_loss(plain.forward(data.x), data.y);
        plain_loss.backward();
        plain_sgd.step();
        plain_losses.push_back(plain_loss.item());
    }
    CHECK(largest_difference(losses, expected.losses) < f64_rounding);
    CHECK(largest_difference(plain_losses, expected.losses) < f64_rounding);
    CHECK(largest_difference(f64_parameters_of(*model), expected.parameters) < f64_rounding);
    CHECK(largest_difference(f64_parameters_of(plain), expected.parameters) < f64_rounding);
}

TEST_CASE("a changed learning rate is f64, also without momentum") {
    const F64Data data;
    const F64Training expected(data, {.lr = 0.01});
    ls::DataParallel<F64Regression> model(data.net, ls::test::cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.5});
    sgd.set_lr(0.01);
    for (int step = 0; step < F64Training::steps; ++step) model.step(sgd, data.x, data.y, ls::mse_loss);
    CHECK(largest_difference(f64_parameters_of(*model), expected.parameters) < f64_rounding);
}
