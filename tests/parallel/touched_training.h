// A small model whose layer's output is touched (test_operations.h), on two devices.
#pragma once

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/parallel/small_net.h"
#include "lockstep/tests/parallel/test_operations.h"

namespace touched_training {

using namespace small_net;

struct Touched {
    ls::Linear fc{4, 3};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return test_operations::touch(fc(x)); }
};

struct Setting {
    ls::DataParallel<Touched> model{Touched{}, devices(2)};
    ls::SGD sgd{model, {.lr = 0.1}};
    ls::Tensor x = ls::Tensor::randn({6, 4}), y = ls::Tensor::randn({6, 3});
    ls::StepLoss step() { return model.step(sgd, x, y, ls::mse_loss); }
    void steps(int count) {
        for (int i = 0; i < count; ++i) step();
        model.synchronize();
    }
    ~Setting() { test_operations::hook() = {}; }
};

}  // namespace touched_training
