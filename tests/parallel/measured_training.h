// Training with adaptive rates, for tests within one process and over several.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/engine_options.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/parallel/kinked_training.h"

namespace lockstep::test {

inline std::unique_ptr<AdaptiveRates> adaptive_rates(const std::string& name) {
    if (name == "AdaScale")
        return std::make_unique<AdaScale>(
            AdaScale::Options{.schedule = [](double steps) { return 1 / (1 + steps / 50); }});
    return std::make_unique<YellowFin>(YellowFin::Options{.smoothing = 0.9, .lr_factor = 0.1});
}

/// What training has come to: parameters and buffers, the rule's numbers and the rates of the last step.
struct Rated {
    std::uint64_t steps = 0;
    std::vector<std::vector<float>> values;
    std::map<std::string, double> rule;
    double lr = 0, momentum = 0;
    bool operator==(const Rated&) const = default;
};

/// Steps [first, last), whose batches have 32 rows, every fifth one 30: of eight shards the last is shorter then.
template <class Model>
void train_rated(Model& model, SGD& sgd, StepOptions how, AdaptiveRates* rates, int first, int last) {
    how.rates = rates;
    for (int i = first; i < last; ++i) {
        manual_seed(static_cast<std::uint64_t>(40 + i));
        const Tensor x = Tensor::randn({i % 5 == 4 ? 30 : 32, 6});
        model.step(sgd, x, x, mean_of_outputs, how);
    }
}

template <class Model>
Rated rated(Model& model, SGD& sgd, AdaptiveRates& rates) {
    model.synchronize();
    Rated result{model.engine().steps_done(), {}, rates.state(), sgd.lr(), sgd.setting("momentum")};
    for (const NamedTensor& named : named_tensors(*model))
        result.values.push_back(named.member->tensor().to(DType::f32).template to_vector<float>());
    return result;
}

}  // namespace lockstep::test
