// The networks of PyTorch's MNIST examples, for the sample and the benchmarks. (N, 1, 28, 28) -> (N, 10)
#pragma once

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"

namespace mnist {

namespace ls = lockstep;

/// The network of PyTorch's examples.
struct Cnn {
    ls::Conv2d conv1{1, 32, 3}, conv2{32, 64, 3};
    ls::Dropout2d drop1{0.25}, drop2{0.5};
    ls::Linear fc1{9216, 128}, fc2{128, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, drop1, drop2, fc1, fc2)

    ls::Tensor forward(ls::Tensor x) {
        x = ls::relu(conv2(ls::relu(conv1(x))));
        x = drop1(ls::max_pool2d(x, 2)).flatten(1);
        return ls::log_softmax(fc2(drop2(ls::relu(fc1(x)))), 1);
    }

    static constexpr double mean = 0, stddev = 1;  // pixels in 0..1
};

/// The older, smaller network.
struct Small {
    ls::Conv2d conv1{1, 10, 5}, conv2{10, 20, 5};
    ls::Dropout2d conv2_drop{0.5};
    ls::Dropout drop{0.5};
    ls::Linear fc1{320, 50}, fc2{50, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, conv2_drop, drop, fc1, fc2)

    ls::Tensor forward(ls::Tensor x) {
        x = ls::relu(ls::max_pool2d(conv1(x), 2));
        x = ls::relu(ls::max_pool2d(conv2_drop(conv2(x)), 2)).flatten(1);
        return ls::log_softmax(fc2(drop(ls::relu(fc1(x)))), 1);
    }

    static constexpr double mean = 0.1307, stddev = 0.3081;
};

}  // namespace mnist
