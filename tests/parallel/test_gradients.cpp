// DataParallel's gradients on 1, 2, 3, 4 and 8 devices against double precision: at most twice the error of one device.
#include <fmt/format.h>

#include <functional>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/small_net.h"

using namespace small_net;
namespace reference = ls::reference;

namespace {

using Target = std::tuple<ls::Tensor, ls::Tensor>;  // labels, dense values (N, 5)

struct Case {
    const char* name;
    std::vector<double> class_weights = {};
    std::int64_t ignore_index = -100;
    ls::Reduction reduction = ls::Reduction::mean;
    double mse_factor = 0;
};

const std::vector<Case> cases{
    {"mean"},
    {"class weights", {0.3, 1.7, 0.05, 2.5, 1}},
    {"ignored rows", {}, 2},
    {"class weights and ignored rows", {0.3, 1.7, 0.05, 2.5, 1}, 4},
    {"sum", {}, -100, ls::Reduction::sum},
    {"sum of losses", {}, -100, ls::Reduction::mean, 0.1},
};

/// The loss of a case, as a user writes it.
struct CaseLoss {
    ls::NllLoss nll;
    double mse_factor;
    ls::Loss operator()(const ls::Tensor& output, const Target& target) const {
        ls::Loss loss = nll(output, std::get<0>(target));
        return mse_factor == 0 ? loss : loss + mse_factor * ls::mse_loss(output, std::get<1>(target));
    }
};

CaseLoss loss_of(const Case& c) {
    ls::NllOptions options;
    if (!c.class_weights.empty())
        options.weight = ls::Tensor::from(std::vector<float>(c.class_weights.begin(), c.class_weights.end()), {5});
    options.ignore_index = c.ignore_index;
    options.reduction = c.reduction;
    return {{options}, c.mse_factor};
}

struct Expected {
    double loss;
    reference::Parameters gradients;
};

Expected expected(const Case& c, const reference::Parameters& parameters, const Batch& batch, const ls::Tensor& dense) {
    const auto run = reference::run_small_net(parameters, array_of(batch.images));
    reference::SmallNetLoss loss;
    for (const double w : c.class_weights) loss.class_weights.push_back(static_cast<float>(w));
    loss.ignore_index = static_cast<double>(c.ignore_index);
    loss.sum = c.reduction == ls::Reduction::sum;
    loss.mse_factor = c.mse_factor;
    loss.dense = array_of(dense);
    Array dy;
    const double value = reference::small_net_loss(loss, run.log_probabilities, batch.classes, dy);
    reference::Parameters gradients = reference::small_net_gradients(parameters, run, dy);
    gradients.pop_back();  // that of the images
    return {value, std::move(gradients)};
}

struct Found {
    double loss;
    std::vector<Array> gradients;
};

/// PyTorch's longer form: the loss is computed on outputs gathered on the first device.
Found longer_form(const Net& net, int k, const Case& c, const Batch& batch, const ls::Tensor& dense) {
    ls::DataParallel<Net> model(net, devices(k));
    const ls::Tensor output = model(batch.images);
    CaseLoss function = loss_of(c);
    const ls::Device device = output.device();
    if (function.nll.options.weight.defined()) function.nll.options.weight = function.nll.options.weight.to(device);
    const ls::Loss loss = function(output, {batch.labels.to(device), dense.to(device)});
    const ls::Tensor value = loss.value();
    value.backward();
    return {value.item(), gradients_of(*model)};
}

/// The loss per replica. The learning rate is so large that the parameters' own digits do not count in the difference:
/// a step changes them by the gradient, times that rate.
Found per_replica(const Net& net, int k, const Case& c, const Batch& batch, const ls::Tensor& dense,
                  ls::ReductionMode mode) {
    constexpr double rate = 1 << 30;
    ls::DataParallel<Net> model(net, devices(k), {.reduction = mode});
    ls::SGD sgd(model, {.lr = rate});
    const std::vector<Array> before = parameters_of(*model);
    const double loss = model.step(sgd, batch.images, Target{batch.labels, dense}, loss_of(c)).item();
    return {loss, difference(before, parameters_of(*model), 1 / rate)};
}

void compare(const Case& c, std::int64_t rows) {
    ls::manual_seed(17);
    Net net;
    const Batch batch = make_batch(rows);
    const ls::Tensor dense = ls::Tensor::randn({rows, 5});
    const Expected right = expected(c, parameters_of(net), batch, dense);
    const auto check = [&](const std::string& form, const std::function<Found(int)>& run) {
        const Found one = run(1);
        const double error_of_one = relative_error(one.gradients, right.gradients);
        INFO(form << ", " << c.name << ", " << rows << " rows");
        CHECK(error_of_one < 1e-6);
        CHECK(one.loss == Approx(right.loss).epsilon(1e-5));
        for (const int k : {2, 3, 4, 8}) {
            INFO(k << " devices");
            const Found found = run(k);
            CHECK(relative_error(found.gradients, right.gradients) <= 2 * error_of_one);
            CHECK(found.loss == Approx(right.loss).epsilon(1e-5));
        }
    };
    check("longer form", [&](int k) { return longer_form(net, k, c, batch, dense); });
    check("loss per replica", [&](int k) { return per_replica(net, k, c, batch, dense, ls::ReductionMode::root); });
    check("slice-wise", [&](int k) { return per_replica(net, k, c, batch, dense, ls::ReductionMode::slice_wise); });
}

}  // namespace

TEST_CASE("gradients on several devices are those of the whole batch: even and uneven batches, few rows, one row") {
    for (const std::int64_t rows : {48, 47, 33, 5, 3, 1}) compare(cases[0], rows);
}

TEST_CASE("gradients of weighted, masked, summed and combined losses are those of the whole batch") {
    for (std::size_t i = 1; i < cases.size(); ++i)
        for (const std::int64_t rows : {48, 29, 5}) compare(cases[i], rows);
}
