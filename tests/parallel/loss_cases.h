// Losses that tests of gradients compute on shards, with their values and gradients in double precision.
#pragma once

#include <tuple>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/parallel/small_net.h"

namespace small_net {

using Target = std::tuple<ls::Tensor, ls::Tensor>;  // labels, dense values (N, 5)

struct Case {
    const char* name;
    std::vector<double> class_weights = {};
    std::int64_t ignore_index = -100;
    ls::Reduction reduction = ls::Reduction::mean;
    double mse_factor = 0;
};

inline const std::vector<Case> cases{
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

inline CaseLoss loss_of(const Case& c) {
    ls::NllOptions options;
    if (!c.class_weights.empty())
        options.weight = ls::Tensor::from(std::vector<float>(c.class_weights.begin(), c.class_weights.end()), {5});
    options.ignore_index = c.ignore_index;
    options.reduction = c.reduction;
    return {{options}, c.mse_factor};
}

struct Expected {
    double loss;
    ls::reference::Parameters gradients;
};

inline Expected expected(const Case& c, const ls::reference::Parameters& parameters, const Batch& batch,
                         const ls::Tensor& dense) {
    const auto run = ls::reference::run_small_net(parameters, array_of(batch.images));
    ls::reference::SmallNetLoss loss;
    for (const double w : c.class_weights) loss.class_weights.push_back(static_cast<float>(w));
    loss.ignore_index = static_cast<double>(c.ignore_index);
    loss.sum = c.reduction == ls::Reduction::sum;
    loss.mse_factor = c.mse_factor;
    loss.dense = array_of(dense);
    Array dy;
    const double value = ls::reference::small_net_loss(loss, run.log_probabilities, batch.classes, dy);
    ls::reference::Parameters gradients = ls::reference::small_net_gradients(parameters, run, dy);
    gradients.pop_back();  // that of the images
    return {value, std::move(gradients)};
}

struct Found {
    double loss;
    std::vector<Array> gradients;
};

/// The loss per replica. The learning rate is so large that the parameters' own digits do not count in the difference:
/// a step changes them by the gradient, times that rate.
inline Found per_replica(const Net& net, int k, const Case& c, const Batch& batch, const ls::Tensor& dense,
                         ls::ReductionMode mode, const ls::StepOptions& step = {}) {
    constexpr double rate = 1 << 30;
    ls::DataParallel<Net> model(net, devices(k), {.reduction = mode});
    ls::SGD sgd(model, {.lr = rate});
    const std::vector<Array> before = parameters_of(*model);
    const double loss = model.step(sgd, batch.images, Target{batch.labels, dense}, loss_of(c), step).item();
    return {loss, difference(before, parameters_of(*model), 1 / rate)};
}

}  // namespace small_net
