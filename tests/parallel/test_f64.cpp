// A model of f64 parameters is trained in double precision throughout: learning rate, momentum, decay and the loss that
// is reported, in every form of a step. (Several processes: test_ddp.)
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/eight_devices.h"
#include "lockstep/tests/parallel/f64_regression.h"

namespace ls = lockstep;
using namespace f64_regression;

TEST_CASE("a step of an f64 model has settings and loss in f64, on any devices and in microbatches") {
    const Data data;
    const Expected expected(data);
    for (const int count : {1, 3})
        for (const auto mode : {ls::ReductionMode::root, ls::ReductionMode::slice_wise})
            for (const int parts : {1, 2}) {
                INFO(count << " devices, " << parts << " microbatches");
                ls::DataParallel<Regression> model(data.net, ls::test::cpu_devices(count), {.reduction = mode});
                ls::SGD sgd(model, settings);
                Values losses;
                for (int step = 0; step < steps; ++step)
                    losses.push_back(
                        model.step(sgd, data.x, data.y, ls::mse_loss, {.accumulation_steps = parts}).item());
                CHECK(largest_difference(losses, expected.losses) < rounding);
                CHECK(largest_difference(parameters_of(*model), expected.parameters) < rounding);
            }
}

TEST_CASE("the manual step and a plain module have them too") {
    const Data data;
    const Expected expected(data);
    ls::DataParallel<Regression> model(data.net, ls::test::cpu_devices(2));
    ls::SGD sgd(model, settings);
    Regression plain = data.net;
    ls::SGD plain_sgd(plain, settings);
    Values losses, plain_losses;
    for (int step = 0; step < steps; ++step) {
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
    CHECK(largest_difference(losses, expected.losses) < rounding);
    CHECK(largest_difference(plain_losses, expected.losses) < rounding);
    CHECK(largest_difference(parameters_of(*model), expected.parameters) < rounding);
    CHECK(largest_difference(parameters_of(plain), expected.parameters) < rounding);
}

TEST_CASE("a changed learning rate is f64, without momentum too") {
    const Data data;
    const Expected expected(data, {.lr = 0.01});
    ls::DataParallel<Regression> model(data.net, ls::test::cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.5});
    sgd.set_lr(0.01);
    for (int step = 0; step < steps; ++step) model.step(sgd, data.x, data.y, ls::mse_loss);
    CHECK(largest_difference(parameters_of(*model), expected.parameters) < rounding);
}
