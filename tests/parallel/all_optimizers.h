// Every optimizer, with the options that make it keep the most, for tests that none may fail.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/tests/consumer/lion.h"

namespace lockstep::test {

template <class Model>
struct NamedOptimizer {
    const char* name;
    std::function<std::unique_ptr<Optimizer>(Model&)> make;
};

template <class Kind, class Model, class Options>
NamedOptimizer<Model> named_optimizer(const char* name, const Options& options) {
    return {name, [options](Model& model) { return std::make_unique<Kind>(model, options); }};
}

template <class Model>
const std::vector<NamedOptimizer<Model>>& all_optimizers() {
    static const std::vector<NamedOptimizer<Model>> all{
        named_optimizer<SGD, Model>("SGD", SgdOptions{.lr = 0.05, .momentum = 0.9}),
        named_optimizer<SGD, Model>("SGD without momentum", SgdOptions{.lr = 0.05}),
        named_optimizer<Adam, Model>("Adam", AdamOptions{.lr = 0.01, .weight_decay = 0.01, .amsgrad = true}),
        named_optimizer<AdamW, Model>("AdamW", AdamWOptions{.lr = 0.01}),
        named_optimizer<RMSprop, Model>("RMSprop", RmspropOptions{.lr = 1e-3, .momentum = 0.5, .centered = true}),
        named_optimizer<Adagrad, Model>("Adagrad", AdagradOptions{.lr_decay = 0.1}),
        named_optimizer<Lion, Model>("Lion", LionOptions{.lr = 1e-3, .weight_decay = 0.1}),
    };
    return all;
}

}  // namespace lockstep::test
