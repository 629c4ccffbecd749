// The network that the programs here train: that of PyTorch's MNIST example.
#pragma once

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"

namespace bench {

struct MnistNet {
    lockstep::Conv2d conv1{1, 32, 3}, conv2{32, 64, 3};
    lockstep::Dropout2d drop1{0.25}, drop2{0.5};
    lockstep::Linear fc1{9216, 128}, fc2{128, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, drop1, drop2, fc1, fc2)

    lockstep::Tensor forward(lockstep::Tensor x) {  // (N, 1, 28, 28) -> (N, 10)
        x = lockstep::relu(conv2(lockstep::relu(conv1(x))));
        x = drop1(lockstep::max_pool2d(x, 2)).flatten(1);
        return lockstep::log_softmax(fc2(drop2(lockstep::relu(fc1(x)))), 1);
    }
};

}  // namespace bench
