// The networks and the data that the tests of DataParallel train.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/random.h"

namespace lockstep::test {

/// The `small` network of the mnist sample. Random operations: 0 conv2_drop, 1 drop.
struct Small {
    Conv2d conv1{1, 10, 5}, conv2{10, 20, 5};
    Dropout2d conv2_drop{0.5};
    Linear fc1{320, 50};
    Dropout drop{0.5};
    Linear fc2{50, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, conv2_drop, fc1, drop, fc2)
    Tensor forward(const Tensor& x) {
        Tensor y = relu(max_pool2d(conv1(x), 2));
        y = relu(max_pool2d(conv2_drop(conv2(y)), 2)).flatten(1);
        return log_softmax(fc2(drop(relu(fc1(y)))), 1);
    }
};

/// Batch normalisation and two dropouts. Random operations: 0 drop1, 1 drop2.
struct Normed {
    Conv2d conv{1, 8, 5};
    BatchNorm2d norm{8};
    Dropout2d drop1{0.25};
    Linear fc1{1152, 32};
    Dropout drop2{0.5};
    Linear fc2{32, 10};
    LOCKSTEP_MEMBERS(conv, norm, drop1, fc1, drop2, fc2)
    Tensor forward(const Tensor& x) {
        const Tensor y = drop1(max_pool2d(relu(norm(conv(x))), 2)).flatten(1);
        return log_softmax(fc2(drop2(relu(fc1(y)))), 1);
    }
};

/// Statistics of the whole batch, in the middle of forward and backward.
struct Synced : Normed {
    Synced() { convert_sync_batchnorm(static_cast<Normed&>(*this)); }
};

/// The `cnn` network of the mnist sample.
struct Cnn {
    Conv2d conv1{1, 32, 3}, conv2{32, 64, 3};
    Dropout2d drop1{0.25}, drop2{0.5};
    Linear fc1{9216, 128}, fc2{128, 10};
    LOCKSTEP_MEMBERS(conv1, conv2, drop1, drop2, fc1, fc2)
    Tensor forward(const Tensor& x) {
        Tensor y = relu(conv2(relu(conv1(x))));
        y = drop1(max_pool2d(y, 2)).flatten(1);
        return log_softmax(fc2(drop2(relu(fc1(y)))), 1);
    }
};

/// Two layers, of sizes that leave no gap in an arena: 64 times 64 and 64 elements, twice.
struct Dense {
    Linear fc1{64, 64}, fc2{64, 64};
    LOCKSTEP_MEMBERS(fc1, fc2)
    Tensor forward(const Tensor& x) { return log_softmax(fc2(relu(fc1(x))), 1); }
};

/// `rows` images of noise with one bright bar that tells the class: learnable, and the same in every run.
struct Images {
    Tensor pixels;                     ///< (rows, 1, 28, 28) f32
    std::vector<std::int64_t> labels;  ///< 0..9
    explicit Images(std::int64_t rows) {
        manual_seed(11);
        pixels = Tensor::rand({rows, 1, 28, 28});
        auto* p = pixels.data<float>();
        for (std::int64_t row = 0; row < rows; ++row) {
            labels.push_back(row * 7 % 10);
            for (std::int64_t x = 0; x < 28; ++x) p[(row * 28 + 4 + 2 * labels.back()) * 28 + x] += 1;
        }
    }
    Tensor batch(std::int64_t first, std::int64_t last) const { return pixels.slice(0, first, last); }
    std::vector<std::int64_t> batch_labels(std::int64_t first, std::int64_t last) const {
        return {labels.begin() + first, labels.begin() + last};
    }
    Tensor targets(std::int64_t first, std::int64_t last) const {
        return Tensor::from(batch_labels(first, last), {last - first});
    }
};

}  // namespace lockstep::test
