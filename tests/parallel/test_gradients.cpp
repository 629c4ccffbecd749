// DataParallel's gradients on 1, 2, 3, 4 and 8 devices against double precision: at most twice the error of one device.
#include <fmt/format.h>

#include <functional>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/double_precision.h"
#include "lockstep/tests/fixtures/eight_devices.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

/// PyTorch's manual step: the loss is computed on outputs gathered on the first device.
LossAndGradients manual_step(const ConvNet& net, int k, const LossCase& c, const ConvNetBatch& batch,
                             const ls::Tensor& dense) {
    ls::DataParallel<ConvNet> model(net, cpu_devices(k));
    const ls::Tensor output = model(batch.images);
    CaseLoss function = loss_of(c);
    const ls::Device device = output.device();
    if (function.nll.options.weight.defined()) function.nll.options.weight = function.nll.options.weight.to(device);
    const ls::Loss loss = function(output, {batch.labels.to(device), dense.to(device)});
    const ls::Tensor value = loss.value();
    value.backward();
    return {value.item(), gradients_of(*model)};
}

void compare(const LossCase& c, std::int64_t rows) {
    ls::manual_seed(17);
    ConvNet net;
    const ConvNetBatch batch = make_batch(rows);
    const ls::Tensor dense = ls::Tensor::randn({rows, 5});
    const LossAndGradients right = expected(c, parameters_of(net), batch, dense);
    const auto check = [&](const std::string& form, const std::function<LossAndGradients(int)>& run) {
        const LossAndGradients one = run(1);
        const double error_of_one = relative_error(one.gradients, right.gradients);
        INFO(form << ", " << c.name << ", " << rows << " rows");
        CHECK(error_of_one < 1e-6);
        CHECK(one.loss == Approx(right.loss).epsilon(1e-5));
        for (const int k : {2, 3, 4, 8}) {
            INFO(k << " devices");
            const LossAndGradients found = run(k);
            CHECK(relative_error(found.gradients, right.gradients) <= 2 * error_of_one);
            CHECK(found.loss == Approx(right.loss).epsilon(1e-5));
        }
    };
    check("manual step", [&](int k) { return manual_step(net, k, c, batch, dense); });
    check("loss per replica", [&](int k) { return per_replica(net, k, c, batch, dense, ls::ReductionMode::root); });
    check("slice-wise", [&](int k) { return per_replica(net, k, c, batch, dense, ls::ReductionMode::slice_wise); });
}

}  // namespace

TEST_CASE("gradients on several devices are those of the whole batch: even and uneven batches, few rows, one row") {
    for (const std::int64_t rows : {48, 47, 33, 5, 3, 1}) compare(loss_cases[0], rows);
}

TEST_CASE("gradients of weighted, masked, summed and combined losses are those of the whole batch") {
    for (std::size_t i = 1; i < loss_cases.size(); ++i)
        for (const std::int64_t rows : {48, 29, 5}) compare(loss_cases[i], rows);
}
